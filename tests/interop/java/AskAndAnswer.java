import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** NAMESRV TOPIC: requests something of TOPIC, then answers one request of TOPIC-back. */
public class AskAndAnswer {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        DefaultMQProducer producer = new DefaultMQProducer("java-requester");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        CountDownLatch answered = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-responder");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic + "-back", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                byte[] body = ("java: " + new String(messages.get(0).getBody(), StandardCharsets.UTF_8))
                    .getBytes(StandardCharsets.UTF_8);
                producer.send(MessageUtil.createReplyMessage(messages.get(0), body), 3000);
                answered.countDown();
            } catch (Exception e) {
                e.printStackTrace();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message reply = producer.request(new Message(topic, "from java".getBytes(StandardCharsets.UTF_8)), 20000);
        System.out.println("REPLY " + new String(reply.getBody(), StandardCharsets.UTF_8)
            + " " + reply.getProperty("mood"));
        System.out.println(answered.await(40, TimeUnit.SECONDS) ? "ANSWERED" : "NOBODY ASKED");
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
