import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Trace NAMESRV TOPIC: one message sent and consumed by clients that trace. Prints its unique id. */
public final class Trace {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("trace_producer", true, null);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        SendResult result = producer.send(new Message(args[1], "tag", "key", "x".getBytes(StandardCharsets.UTF_8)));
        System.out.println("msgId=" + result.getMsgId());
        CountDownLatch consumed = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("trace_group", true, null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("consumed=" + consumed.await(30, TimeUnit.SECONDS));
        Thread.sleep(500);
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
