import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * TransactionsThroughKill NAMESRV TOPIC SENDERS STOPFILE: each sender sends transactional messages one after the other,
 * while a push consumer reads; masters may be killed meanwhile. Of ten messages five are committed at once, two are
 * rolled back at once, one is committed and one rolled back at the first check, and one is committed at the second.
 * When STOPFILE exists it stops sending, waits for the consumer and prints what it saw as key=value lines.
 */
public final class TransactionsThroughKill {
    private static final Set<String> TO_COMMIT = ConcurrentHashMap.newKeySet();
    private static final Map<String, Integer> CHECKS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int senders = Integer.parseInt(args[2]);
        Path stop = Path.of(args[3]);

        Map<String, Integer> consumed = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("transactions_readers");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, "*");
        Map<String, Set<String>> places = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                consumed.merge(message.getKeys(), 1, Integer::sum);
                places.computeIfAbsent(message.getKeys(), key -> ConcurrentHashMap.newKeySet())
                    .add(message.getQueueId() + ":" + message.getQueueOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });

        TransactionMQProducer producer = new TransactionMQProducer("transactions_writers");
        producer.setNamesrvAddr(namesrv);
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setTransactionListener(new Decisions());
        producer.start();
        AtomicInteger failures = new AtomicInteger();
        AtomicInteger sent = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < senders; i++) {
            int sender = i;
            Thread thread = new Thread(() -> {
                for (int number = 0; !Files.exists(stop); number++) {
                    String key = sender + "-" + number;
                    byte[] body = ("body of " + key).getBytes(StandardCharsets.UTF_8);
                    try {
                        producer.sendMessageInTransaction(new Message(topic, "t", key, body), null);
                        sent.incrementAndGet();
                    } catch (Exception error) {
                        failures.incrementAndGet();
                        sleep(20);
                    }
                    sleep(2);
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
        while (!consumed.keySet().containsAll(TO_COMMIT) && System.currentTimeMillis() < deadline) {
            sleep(50);
        }
        sleep(3000);
        Set<String> lost = new TreeSet<>(TO_COMMIT);
        lost.removeAll(consumed.keySet());
        Set<String> wrong = new TreeSet<>(consumed.keySet());
        wrong.removeAll(TO_COMMIT);
        long twice = places.values().stream().filter(each -> each.size() > 1).count();
        int checks = CHECKS.values().stream().mapToInt(Integer::intValue).sum();
        System.out.println("lost=" + lost.size() + " " + lost.stream().limit(5).toList());
        System.out.println("wrong=" + wrong.size() + " " + wrong.stream().limit(5).toList());
        System.out.println("sent=" + sent.get() + " consumed=" + consumed.size() + " stored_twice=" + twice);
        System.out.println("checks=" + checks + " failed_attempts=" + failures.get());
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    /** Runs after the half message is acknowledged: from then on its decision is known. */
    private static final class Decisions implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object unused) {
            int number = number(message);
            if (number < 5 || number == 7 || number == 9) {
                TO_COMMIT.add(message.getKeys());
            }
            if (number < 5) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return number < 7 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int count = CHECKS.merge(message.getKeys(), 1, Integer::sum);
            if (number(message) == 9 && count < 2) {
                return LocalTransactionState.UNKNOW;
            }
            return TO_COMMIT.contains(message.getKeys())
                ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        private static int number(Message message) {
            return Integer.parseInt(message.getKeys().split("-")[1]) % 10;
        }
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
