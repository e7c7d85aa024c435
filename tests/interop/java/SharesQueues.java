import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * SharesQueues NAMESRV TOPIC GROUP SECONDS: an ordered push consumer that prints got=QUEUE:OFFSET:BODY for so long.
 */
public final class SharesQueues {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.println("got=" + message.getQueueId() + ":" + message.getQueueOffset() + ":" + body);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Thread.sleep(1000L * Integer.parseInt(args[3]));
        consumer.shutdown();
        System.exit(0);
    }
}
