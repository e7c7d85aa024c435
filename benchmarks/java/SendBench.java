import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load through RocketMQ's own client, the same for the Java broker and for ours.
 *
 *   SendBench send    NAMESRV TOPIC THREADS BODY_BYTES BATCH SECONDS WARM_SECONDS
 *   SendBench consume NAMESRV TOPIC GROUP MESSAGES IDLE_SECONDS
 *
 * Prints one line a second on stderr and one line of JSON on stdout.
 */
public final class SendBench {
    public static void main(String[] args) throws Exception {
        if (args.length == 8 && args[0].equals("send")) {
            send(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), Integer.parseInt(args[5]),
                Integer.parseInt(args[6]), Integer.parseInt(args[7]));
        } else if (args.length == 6 && args[0].equals("consume")) {
            consume(args[1], args[2], args[3], Long.parseLong(args[4]), Integer.parseInt(args[5]));
        } else {
            System.err.println("usage: SendBench send NAMESRV TOPIC THREADS BODY_BYTES BATCH SECONDS WARM_SECONDS");
            System.err.println("       SendBench consume NAMESRV TOPIC GROUP MESSAGES IDLE_SECONDS");
            System.exit(2);
        }
    }

    private static void send(String namesrv, String topic, int threads, int size, int batch, int seconds, int warm)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_producer");
        producer.setNamesrvAddr(namesrv);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        LongAdder sent = new LongAdder();
        LongAdder failed = new LongAdder();
        LongAdder notReplicated = new LongAdder();
        AtomicLong end = new AtomicLong(System.nanoTime() + (seconds + warm) * 1_000_000_000L);
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread worker = new Thread(() -> {
                while (System.nanoTime() < end.get()) {
                    try {
                        SendResult result;
                        if (batch == 1) {
                            result = producer.send(new Message(topic, body));
                        } else {
                            List<Message> messages = new ArrayList<>(batch);
                            for (int n = 0; n < batch; n++) {
                                messages.add(new Message(topic, body));
                            }
                            result = producer.send(messages);
                        }
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            notReplicated.add(batch);
                        }
                        sent.add(batch);
                    } catch (Exception e) {
                        failed.increment();
                        if (failed.sum() <= 3) {
                            System.err.println(e);
                        }
                    }
                }
            });
            worker.start();
            workers.add(worker);
        }
        long before = 0;
        long warmCount = 0;
        for (int second = 1; second <= seconds + warm; second++) {
            Thread.sleep(1000);
            long now = sent.sum();
            System.err.printf("%3d s %8d msg/s%n", second, now - before);
            before = now;
            if (second == warm) {
                warmCount = now;
            }
        }
        long total = sent.sum() - warmCount;
        for (Thread worker : workers) {
            worker.join();
        }
        producer.shutdown();
        System.out.printf("{\"mode\":\"send\",\"threads\":%d,\"bytes\":%d,\"batch\":%d,\"msg_per_s\":%d,\"failed\":%d,"
            + "\"not_replicated\":%d}%n", threads, size, batch, total / seconds, failed.sum(), notReplicated.sum());
        System.exit(failed.sum() > 0 ? 1 : 0);
    }

    private static void consume(String namesrv, String topic, String group, long wanted, int idleSeconds)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        LongAdder received = new LongAdder();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            first.compareAndSet(0, now);
            last.set(now);
            received.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long before = 0;
        long best = 0;
        int idle = 0;
        while (received.sum() < wanted && idle < idleSeconds) {
            Thread.sleep(1000);
            long now = received.sum();
            System.err.printf("%9d received, %8d msg/s%n", now, now - before);
            best = Math.max(best, now - before);
            idle = now == before ? idle + 1 : 0;
            before = now;
        }
        double seconds = Math.max(1, last.get() - first.get()) / 1e9;
        System.out.printf("{\"mode\":\"consume\",\"received\":%d,\"seconds\":%.2f,\"msg_per_s\":%d,\"best_second\":%d}%n",
            received.sum(), seconds, Math.round(received.sum() / seconds), best);
        consumer.shutdown();
        System.exit(received.sum() >= wanted ? 0 : 1);
    }
}
