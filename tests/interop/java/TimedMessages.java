import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * TimedMessages NAMESRV TOPIC MESSAGES: messages with a delay in ms, in s and with a time of delivery; every fourth is
 * recalled. A push consumer notes when each comes. Prints what it saw as key=value lines.
 */
public final class TimedMessages {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        Map<String, Long> due = new ConcurrentHashMap<>();
        Set<String> recalled = ConcurrentHashMap.newKeySet();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger early = new AtomicInteger();
        AtomicInteger recalledCame = new AtomicInteger();
        AtomicLong worst = new AtomicLong();

        DefaultMQProducer producer = new DefaultMQProducer("timed_producer");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        for (int attempt = 0; attempt < 30; attempt++) {
            try {
                producer.send(new Message(topic, "warm", "warm", "warm".getBytes(StandardCharsets.UTF_8)));
                break;
            } catch (Exception error) {
                Thread.sleep(1000);
            }
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("timed_group");
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "timed");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String key = message.getKeys();
                long late = System.currentTimeMillis() - due.getOrDefault(key, 0L);
                if (recalled.contains(key)) {
                    recalledCame.incrementAndGet();
                }
                if (late < 0) {
                    early.incrementAndGet();
                }
                worst.accumulateAndGet(message.getStoreTimestamp() - due.getOrDefault(key, 0L), Math::max);
                seen.add(key);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < count; i++) {
            String key = "k" + i;
            Message message = new Message(topic, "timed", key, key.getBytes(StandardCharsets.UTF_8));
            long delay = i % 4 == 3 ? 12_000 : 1_000 * (1 + i % 5);
            long now = System.currentTimeMillis();
            if (i % 3 == 0) {
                message.setDelayTimeMs(delay);
            } else if (i % 3 == 1) {
                message.setDelayTimeSec(delay / 1000);
            } else {
                message.setDeliverTimeMs(now + delay);
            }
            due.put(key, now + delay);
            SendResult result = producer.send(message);
            if (i % 4 == 3) {
                recalled.add(key);
                String id = producer.recallMessage(topic, result.getRecallHandle());
                if (!id.equals(result.getMsgId())) {
                    throw new IllegalStateException(id + " recalled, not " + result.getMsgId());
                }
            }
        }
        Message late = new Message(topic, "timed", "late", "late".getBytes(StandardCharsets.UTF_8));
        late.setDelayTimeSec(300_000);
        try {
            producer.send(late);
            System.out.println("too_late=accepted");
        } catch (MQBrokerException error) {
            System.out.println("too_late=" + error.getResponseCode());
        }
        List<String> wanted = new ArrayList<>(due.keySet());
        wanted.removeAll(recalled);
        long end = System.currentTimeMillis() + 60_000;
        while (!seen.containsAll(wanted) && System.currentTimeMillis() < end) {
            Thread.sleep(100);
        }
        boolean complete = seen.containsAll(wanted);
        Thread.sleep(13_000);
        System.out.println("complete=" + complete);
        System.out.println("early=" + early.get());
        System.out.println("recalled=" + recalled.size());
        System.out.println("recalled_came=" + recalledCame.get());
        System.out.println("worst_ms=" + worst.get());
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
