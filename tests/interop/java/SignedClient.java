import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** namesrv topic group accessKey secretKey count: sends and consumes as this user. Prints SENT n, CONSUMED n or REFUSED code remark. */
public class SignedClient {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0], topic = args[1], group = args[2];
        int count = Integer.parseInt(args[5]);
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(args[3], args[4]));
        DefaultMQProducer producer = new DefaultMQProducer("signed_producer", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            for (int i = 0; i < count; i++) {
                producer.send(new Message(topic, ("java " + i).getBytes(StandardCharsets.UTF_8)), 10_000);
            }
            System.out.println("SENT " + count);
        } catch (Exception error) {
            Throwable cause = error;
            while (cause.getCause() != null && !(cause instanceof MQBrokerException)) {
                cause = cause.getCause();
            }
            MQBrokerException refusal = (MQBrokerException) cause;
            System.out.println("REFUSED " + refusal.getResponseCode() + " " + refusal.getErrorMessage());
            System.exit(0);
        }
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch all = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (seen.add(message.getMsgId())) {
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        all.await(40, TimeUnit.SECONDS);
        System.out.println("CONSUMED " + seen.size());
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
