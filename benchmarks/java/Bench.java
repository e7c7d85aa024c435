import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * The same client load for any RocketMQ-compatible cluster; each result is a line of JSON.
 *
 *   send NAMESRV TOPIC THREADS BYTES BATCH KIND
 *       one send in flight a thread. Each line WARM_SECONDS SECONDS of stdin is one run, with a rate a second; it prints
 *       "measuring" when it begins to count, and then "measured" and how many messages were acknowledged. KIND: plain,
 *       transaction (each is committed at once), trace (the producer traces), timed (due within some seconds)
 *   fill NAMESRV TOPIC THREADS BYTES BATCH COUNT
 *       stores COUNT messages whose property a has each of 0 to 99 equally often
 *   consume NAMESRV TOPIC GROUP COUNT KIND
 *       a push consumer reads COUNT messages. KIND: plain, ordered, pop (counts acknowledgements; the group's mode must be
 *       pop), sql (COUNT of the topic's messages are passed by a filter that one in a hundred passes)
 *   timers NAMESRV TOPIC THREADS BYTES COUNT LEAD SECONDS
 *       sends COUNT messages due in SECONDS, evenly, the first one after LEAD seconds, and waits for them
 */
public class Bench {
    public static void main(String[] args) throws Exception {
        // Binary headers, as RocketMQ's own benchmark has them. They have 16 bits for the code of a request, those of
        // pops have 18: RocketMQ's brokers refuse them with binary headers.
        boolean pop = args[0].equals("consume") && args[5].equals("pop");
        System.setProperty("rocketmq.serialize.type", pop ? "JSON" : "ROCKETMQ");
        switch (args[0]) {
            case "send":
                Put put = put(args[1], args[6], args[2], num(args[4]), num(args[5]));
                BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
                for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                    String[] seconds = order.trim().split(" ");
                    send(put, num(args[3]), num(seconds[0]), num(seconds[1]));
                }
                break;
            case "fill":
                fill(args[1], args[2], num(args[3]), num(args[4]), num(args[5]), num(args[6]));
                break;
            case "consume":
                consume(args[1], args[2], args[3], num(args[4]), args[5]);
                break;
            case "timers":
                timers(args[1], args[2], num(args[3]), num(args[4]), num(args[5]), num(args[6]), num(args[7]));
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
        System.exit(0);
    }

    static int num(String s) {
        return Integer.parseInt(s);
    }

    /** Sends once; returns how many messages were acknowledged. */
    interface Put {
        int once() throws Exception;
    }

    static <P extends DefaultMQProducer> P started(P producer, String namesrv) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    static String group() {
        return "bench_" + System.currentTimeMillis();
    }

    static byte[] body(int bytes) {
        byte[] body = new byte[bytes];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    static int ok(SendResult result, int count) {
        return result.getSendStatus() == SendStatus.SEND_OK ? count : 0;
    }

    static Put put(String namesrv, String kind, String topic, int bytes, int batch) throws Exception {
        byte[] body = body(bytes);
        switch (kind) {
            case "plain":
                DefaultMQProducer producer = started(new DefaultMQProducer(group()), namesrv);
                if (batch == 1) {
                    return () -> ok(producer.send(new Message(topic, body)), 1);
                }
                return () -> {
                    List<Message> messages = new ArrayList<>(batch);
                    for (int i = 0; i < batch; i++) {
                        messages.add(new Message(topic, body));
                    }
                    return ok(producer.send(messages), batch);
                };
            case "trace":
                DefaultMQProducer traced = started(new DefaultMQProducer(group(), true, null), namesrv);
                return () -> ok(traced.send(new Message(topic, body)), 1);
            case "timed":
                DefaultMQProducer timed = started(new DefaultMQProducer(group()), namesrv);
                AtomicInteger turn = new AtomicInteger();
                return () -> {
                    Message message = new Message(topic, body);
                    message.setDeliverTimeMs(System.currentTimeMillis() + 3_000 + turn.incrementAndGet() % 4_000);
                    return ok(timed.send(message), 1);
                };
            case "transaction":
                TransactionMQProducer transactions = new TransactionMQProducer(group());
                transactions.setTransactionListener(new TransactionListener() {
                    @Override
                    public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                        return LocalTransactionState.COMMIT_MESSAGE;
                    }

                    @Override
                    public LocalTransactionState checkLocalTransaction(MessageExt message) {
                        return LocalTransactionState.COMMIT_MESSAGE;
                    }
                });
                started(transactions, namesrv);
                return () -> ok(transactions.sendMessageInTransaction(new Message(topic, body), null), 1);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    static void fill(String namesrv, String topic, int threads, int bytes, int batch, int count) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(group()), namesrv);
        byte[] body = body(bytes);
        AtomicInteger next = new AtomicInteger();
        AtomicInteger stored = new AtomicInteger();
        List<Thread> workers = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            Thread worker = new Thread(() -> {
                int first;
                while ((first = next.getAndAdd(batch)) < count) {
                    List<Message> messages = new ArrayList<>(batch);
                    for (int i = first; i < Math.min(first + batch, count); i++) {
                        Message message = new Message(topic, body);
                        message.putUserProperty("a", String.valueOf(i % 100));
                        messages.add(message);
                    }
                    for (int sent = 0; sent == 0; ) {
                        try {
                            sent = ok(producer.send(messages), messages.size());
                            stored.addAndGet(sent);
                        } catch (Exception e) {
                            System.err.println(e);
                        }
                    }
                }
            });
            worker.start();
            workers.add(worker);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        System.out.printf("{\"stored\": %d}%n", stored.get());
    }

    static void send(Put put, int threads, int warm, int seconds) throws Exception {
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
                        int stored = put.once();
                        if (stored > 0) {
                            ok.add(stored);
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

    /** Counts acknowledgements of popped messages that were answered with success. */
    static final class AckCounter implements RPCHook {
        final LongAdder acks = new LongAdder();

        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            if (request.getCode() == RequestCode.ACK_MESSAGE && response != null
                && response.getCode() == ResponseCode.SUCCESS) {
                acks.increment();
            }
        }
    }

    static void consume(String namesrv, String topic, String group, int count, String kind) throws Exception {
        AckCounter hook = new AckCounter();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, kind.equals("pop") ? hook : null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(32);
        LongAdder got = new LongAdder();
        if (kind.equals("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql("a BETWEEN 7 AND 7"));
        } else {
            consumer.subscribe(topic, "*");
        }
        if (kind.equals("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                got.add(messages.size());
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                got.add(messages.size());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.setClientRebalance(!kind.equals("pop"));
        LongAdder counted = kind.equals("pop") ? hook.acks : got;
        int scale = kind.equals("sql") ? 100 : 1;
        // Warm-up: class loading and rebalance. Filtered messages are read in seconds, in which more is compiled.
        int warm = kind.equals("sql") ? count / 2 : count / 10;
        consumer.start();
        long first = 0;
        long firstCount = 0;
        while (counted.sum() * scale < count) {
            Thread.sleep(5);
            if (firstCount == 0 && counted.sum() * scale > warm) {
                firstCount = counted.sum();
                first = System.nanoTime();
                System.out.println("measuring");
            }
        }
        long measured = (counted.sum() - firstCount) * scale;
        double rate = measured / ((System.nanoTime() - first) / 1e9);
        System.out.println("measured " + measured);
        System.out.printf("{\"messages_s\": %.0f, \"consumed\": %d}%n", rate, got.sum());
    }

    static void timers(String namesrv, String topic, int threads, int bytes, int count, int lead, int seconds)
        throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer(group()), namesrv);
        byte[] body = body(bytes);
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        List<Thread> workers = new ArrayList<>();
        long began = System.nanoTime();
        // The first tenth is warm-up: class loading and connections.
        int warm = count / 10;
        AtomicLong warmed = new AtomicLong(began);
        long begin = System.currentTimeMillis() + lead * 1000L;
        System.out.println("measuring");
        for (int t = 0; t < threads; t++) {
            Thread worker = new Thread(() -> {
                int n;
                while ((n = next.getAndIncrement()) < count) {
                    if (n == warm) {
                        warmed.set(System.nanoTime());
                    }
                    long due = begin + (long) n * seconds * 1000 / count;
                    Message message = new Message(topic, body);
                    message.putUserProperty("due", String.valueOf(due));
                    message.setDeliverTimeMs(due);
                    try {
                        if (ok(producer.send(message), 1) == 0) {
                            failed.incrementAndGet();
                        }
                    } catch (Exception e) {
                        failed.incrementAndGet();
                    }
                }
            });
            worker.start();
            workers.add(worker);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        long sent = System.nanoTime();
        double sendSeconds = (sent - began) / 1e9;
        List<Long> late = new ArrayList<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (late) {
                for (MessageExt message : messages) {
                    late.add(message.getStoreTimestamp() - Long.parseLong(message.getUserProperty("due")));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = begin + (seconds + 60) * 1000L;
        while (System.currentTimeMillis() < end) {
            Thread.sleep(100);
            synchronized (late) {
                if (late.size() >= count - failed.get()) {
                    break;
                }
            }
        }
        System.out.println("measured " + count);
        synchronized (late) {
            late.sort(null);
            int got = late.size();
            long early = late.stream().filter(ms -> ms < 0).count();
            System.out.printf(
                "{\"sends_s\": %.0f, \"slow\": %b, \"failed\": %d, \"missing\": %d, \"early\": %d, \"p50_ms\": %d, "
                    + "\"p99_ms\": %d, \"max_ms\": %d}%n",
                (count - warm) * 1e9 / (sent - warmed.get()), sendSeconds > lead,
                failed.get(), count - failed.get() - got, early,
                got == 0 ? 0 : late.get(got / 2), got == 0 ? 0 : late.get((int) (got * 0.99)),
                got == 0 ? 0 : late.get(got - 1));
        }
    }
}
