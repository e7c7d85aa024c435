import java.io.BufferedReader;
import java.io.InputStreamReader;
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
 * The same client load for any RocketMQ-compatible cluster; each result is a line of JSON.
 *
 *   send NAMESRV TOPIC THREADS BYTES BATCH   one send in flight a thread. Each line WARM_SECONDS SECONDS of stdin is one
 *                                            run, with a rate a second; it says "measuring" when it begins to count, and
 *                                            then "measured" and how many messages were acknowledged
 *   consume NAMESRV TOPIC GROUP COUNT        a push consumer reads COUNT messages
 */
public class Bench {
    public static void main(String[] args) throws Exception {
        // Binary headers, as RocketMQ's own benchmark has them.
        System.setProperty("rocketmq.serialize.type", "ROCKETMQ");
        switch (args[0]) {
            case "send":
                DefaultMQProducer producer = producer(args[1]);
                BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
                for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                    String[] seconds = order.trim().split(" ");
                    send(producer, args[2], num(args[3]), num(args[4]), num(args[5]), num(seconds[0]), num(seconds[1]));
                }
                break;
            case "consume":
                consume(args[1], args[2], args[3], num(args[4]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    static int num(String s) {
        return Integer.parseInt(s);
    }

    static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench_" + System.currentTimeMillis());
        producer.setNamesrvAddr(namesrv);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    static SendResult put(DefaultMQProducer producer, String topic, byte[] body, int batch) throws Exception {
        if (batch == 1) {
            return producer.send(new Message(topic, body));
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(new Message(topic, body));
        }
        return producer.send(messages);
    }

    static void send(DefaultMQProducer producer, String topic, int threads, int bytes, int batch, int warm, int seconds)
        throws Exception {
        byte[] body = new byte[bytes];
        Arrays.fill(body, (byte) 'x');
        LongAdder ok = new LongAdder();
        LongAdder bad = new LongAdder();
        long end = System.nanoTime() + (warm + seconds) * 1_000_000_000L;
        long measureFrom = System.nanoTime() + warm * 1_000_000_000L;
        List<long[]> latencies = new ArrayList<>();
        List<Thread> workers = new ArrayList<>();
        AtomicIntegerArrayOf counts = new AtomicIntegerArrayOf(threads);
        for (int t = 0; t < threads; t++) {
            int id = t;
            long[] mine = new long[4_000_000 / threads];
            latencies.add(mine);
            Thread worker = new Thread(() -> {
                int n = 0;
                while (true) {
                    long start = System.nanoTime();
                    if (start >= end) {
                        break;
                    }
                    try {
                        SendResult result = put(producer, topic, body, batch);
                        if (result.getSendStatus() == SendStatus.SEND_OK) {
                            ok.add(batch);
                        } else {
                            bad.increment();
                        }
                    } catch (Exception e) {
                        bad.increment();
                    }
                    if (start >= measureFrom && n < mine.length) {
                        mine[n++] = System.nanoTime() - start;
                    }
                }
                counts.values[id] = n;
            });
            worker.start();
            workers.add(worker);
        }
        Thread.sleep(warm * 1000L);
        System.out.println("measuring");
        long sentBefore = ok.sum();
        List<Long> rates = new ArrayList<>();
        long last = sentBefore;
        long lastTime = System.nanoTime();
        for (int second = 0; second < seconds; second++) {
            Thread.sleep(1000);
            long now = ok.sum();
            long time = System.nanoTime();
            rates.add(Math.round((now - last) / ((time - lastTime) / 1e9)));
            last = now;
            lastTime = time;
        }
        System.out.println("measured " + (last - sentBefore));
        for (Thread worker : workers) {
            worker.join();
        }
        int total = Arrays.stream(counts.values).sum();
        long[] all = new long[total];
        int at = 0;
        for (int t = 0; t < threads; t++) {
            System.arraycopy(latencies.get(t), 0, all, at, counts.values[t]);
            at += counts.values[t];
        }
        Arrays.sort(all);
        System.out.printf("{\"rates\": %s, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"sent\": %d, \"failed\": %d}%n",
            rates, total == 0 ? 0 : all[total / 2] / 1e6, total == 0 ? 0 : all[(int) (total * 0.99)] / 1e6, ok.sum(),
            bad.sum());
    }

    static final class AtomicIntegerArrayOf {
        final int[] values;

        AtomicIntegerArrayOf(int size) {
            values = new int[size];
        }
    }

    static void consume(String namesrv, String topic, String group, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        LongAdder got = new LongAdder();
        AtomicLong first = new AtomicLong();
        AtomicLong firstCount = new AtomicLong();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            got.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (got.sum() < count) {
            Thread.sleep(20);
            long now = System.nanoTime();
            // The first tenth is warm-up: class loading and rebalance.
            if (firstCount.get() == 0 && got.sum() > count / 10) {
                firstCount.set(got.sum());
                first.set(now);
            }
        }
        double rate = (got.sum() - firstCount.get()) / ((System.nanoTime() - first.get()) / 1e9);
        System.out.printf("{\"messages_s\": %.0f, \"consumed\": %d}%n", rate, got.sum());
    }
}
