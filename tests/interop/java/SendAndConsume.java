import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * SendAndConsume NAMESRV TOPIC MESSAGES: single sends, batches and a delayed message out, all of them back in through a
 * push consumer that filters by tag and fails one message once. Prints what it saw as key=value lines.
 */
public final class SendAndConsume {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        Set<String> wanted = ConcurrentHashMap.newKeySet();

        DefaultMQProducer producer = new DefaultMQProducer("interop_producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            String key = "single-" + i;
            boolean mine = i % 2 == 0;
            Message message = new Message(topic, mine ? "mine" : "other", key, key.getBytes(StandardCharsets.UTF_8));
            SendResult result = producer.send(message);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
            if (mine) {
                wanted.add(key);
            }
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            String key = "batch-" + i;
            batch.add(new Message(topic, "mine", key, key.getBytes(StandardCharsets.UTF_8)));
            wanted.add(key);
        }
        System.out.println("batch_ids=" + producer.send(batch).getOffsetMsgId().split(",").length);
        byte[] large = new byte[200_000];
        java.util.Arrays.fill(large, (byte) 'z');
        producer.send(new Message(topic, "mine", "large", large));
        wanted.add("large");
        Message delayed = new Message(topic, "mine", "delayed", "delayed".getBytes(StandardCharsets.UTF_8));
        delayed.setDelayTimeLevel(1);
        long delayedAt = System.currentTimeMillis();
        producer.send(delayed);
        wanted.add("delayed");

        CountDownLatch all = new CountDownLatch(wanted.size());
        AtomicInteger foreign = new AtomicInteger();
        AtomicInteger retried = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("interop_group");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "mine");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String key = message.getKeys();
                if (key.equals("single-0") && message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (message.getReconsumeTimes() > 0) {
                    retried.incrementAndGet();
                }
                if (key.equals("delayed")) {
                    System.out.println("delay_ms=" + (System.currentTimeMillis() - delayedAt));
                }
                if (key.equals("large") && message.getBody().length != 200_000) {
                    throw new IllegalStateException("large body has " + message.getBody().length);
                }
                if (wanted.remove(key)) {
                    all.countDown();
                } else {
                    foreign.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(60, TimeUnit.SECONDS);
        System.out.println("complete=" + complete + " missing=" + wanted);
        System.out.println("foreign=" + foreign.get() + " retried=" + retried.get());
        consumer.shutdown();
        producer.shutdown();
        System.exit(complete ? 0 : 1);
    }
}
