import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** ReadBack NAMESRV TOPIC COUNT: print "MESSAGE id tags body" (body in hex) of the first COUNT messages. */
public class ReadBack {
    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch left = new CountDownLatch(Integer.parseInt(args[2]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("read_back_" + System.nanoTime());
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String tags = message.getTags() == null ? "-" : message.getTags();
                System.out.println("MESSAGE " + message.getMsgId() + " " + tags + " " + hex(message.getBody()));
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        System.exit(0);
    }
}
