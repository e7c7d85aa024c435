import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * ThroughKill NAMESRV TOPIC SENDERS STOPFILE: each sender sends keyed messages to its own queue, one after the
 * other, each until it is acknowledged, while an orderly push consumer reads; masters may be killed meanwhile. When
 * STOPFILE exists it stops sending, waits for the consumer and prints what it saw as key=value lines.
 */
public final class ThroughKill {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int senders = Integer.parseInt(args[2]);
        Path stop = Path.of(args[3]);

        Map<String, Integer> consumed = new ConcurrentHashMap<>();
        int[] newest = new int[senders];
        java.util.Arrays.fill(newest, -1);
        AtomicInteger disordered = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("through_kill_readers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                if (consumed.merge(message.getKeys(), 1, Integer::sum) == 1) {
                    String[] parts = message.getKeys().split("-");
                    int sender = Integer.parseInt(parts[0]);
                    int number = Integer.parseInt(parts[1]);
                    // The first delivery of each message: later ones are repeats, which a restart may bring.
                    synchronized (newest) {
                        if (message.getQueueId() != sender || number != newest[sender] + 1) {
                            disordered.incrementAndGet();
                        }
                        newest[sender] = Math.max(newest[sender], number);
                    }
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });

        DefaultMQProducer producer = new DefaultMQProducer("through_kill_writers");
        producer.setNamesrvAddr(namesrv);
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        AtomicInteger failures = new AtomicInteger();
        AtomicLong longest = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < senders; i++) {
            int sender = i;
            Thread thread = new Thread(() -> {
                long last = System.nanoTime();
                for (int number = 0; !Files.exists(stop); number++) {
                    String key = sender + "-" + number;
                    byte[] body = ("body of " + key).getBytes(StandardCharsets.UTF_8);
                    while (!acknowledged.contains(key)) {
                        try {
                            SendResult result = producer.send(new Message(topic, "t", key, body),
                                (queues, message, mine) -> pick(queues, (Integer) mine), sender, 3000);
                            if (result.getSendStatus() == SendStatus.SEND_OK) {
                                acknowledged.add(key);
                                continue;
                            }
                        } catch (Exception error) {
                            if (Thread.currentThread().isInterrupted()) {
                                return;
                            }
                        }
                        failures.incrementAndGet();
                        sleep(20);
                    }
                    long now = System.nanoTime();
                    long gap = (now - last) / 1_000_000;
                    last = now;
                    if (number > 0) {
                        longest.accumulateAndGet(gap, Math::max);
                    }
                    sleep(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        consumer.start();
        for (Thread thread : threads) {
            thread.join();
        }
        long deadline = System.currentTimeMillis() + 60_000;
        while (!consumed.keySet().containsAll(acknowledged) && System.currentTimeMillis() < deadline) {
            sleep(50);
        }
        acknowledged.removeAll(consumed.keySet());
        int repeats = consumed.values().stream().mapToInt(times -> times - 1).sum();
        System.out.println("lost=" + acknowledged.size() + " " + acknowledged.stream().limit(5).toList());
        System.out.println("consumed=" + consumed.size() + " repeats=" + repeats + " disordered=" + disordered.get());
        System.out.println("failed_attempts=" + failures.get() + " longest_gap_ms=" + longest.get());
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    private static MessageQueue pick(List<MessageQueue> queues, int id) {
        return queues.stream().filter(queue -> queue.getQueueId() == id).findFirst().orElseThrow();
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
