import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * ThroughProxy ENDPOINT SCENARIO [ARG ...]: RocketMQ's gRPC client through its proxy. Prints what it saw as key=value
 * lines. USER_NAME and PASSWORD in the environment sign its requests.
 */
public final class ThroughProxy {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration client;

    public static void main(String[] args) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).enableSsl(false).setRequestTimeout(Duration.ofSeconds(10));
        if (System.getenv("USER_NAME") != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(System.getenv("USER_NAME"), System.getenv("PASSWORD")));
        }
        client = builder.build();
        switch (args[1]) {
            case "simple" -> simple();
            case "ordered" -> ordered();
            case "timed" -> timed();
            case "transactions" -> transactions();
            case "push" -> push();
            case "kill" -> kill(Path.of(args[2]));
            default -> throw new IllegalArgumentException(args[1]);
        }
        System.exit(0);
    }

    /** Messages with tags and properties; a simple consumer filters, acknowledges and hides. */
    private static void simple() throws Exception {
        try (Producer producer = producer("Normal")) {
            for (int i = 0; i < 20; i++) {
                producer.send(message("Normal", "m" + i).setTag(i % 2 == 0 ? "even" : "odd").setKeys("k" + i)
                    .addProperty("number", String.valueOf(i)).build());
            }
        }
        FilterExpression even = new FilterExpression("even");
        print("even", receive("simple_even", "Normal", even, 10, 20));
        print("sql", receive("simple_sql", "Normal",
            new FilterExpression("number BETWEEN 3 AND 6", FilterExpressionType.SQL92), 4, 20));
        // The group has acknowledged all of them.
        print("again", receive("simple_even", "Normal", even, 1, 5));
        try (SimpleConsumer consumer = consumer("simple_hide", "Normal", new FilterExpression("odd"))) {
            Set<String> hidden = new TreeSet<>();
            long began = System.currentTimeMillis();
            while (hidden.size() < 10 && System.currentTimeMillis() < began + 20_000) {
                for (MessageView view : consumer.receive(3, Duration.ofSeconds(60))) {
                    consumer.changeInvisibleDuration(view, Duration.ofSeconds(11));
                    hidden.add(text(view));
                }
            }
            long hiddenAt = System.currentTimeMillis();
            Set<String> back = new TreeSet<>();
            long first = 0;
            int attempt = 0;
            while (back.size() < hidden.size() && System.currentTimeMillis() < hiddenAt + 40_000) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(60))) {
                    first = first == 0 ? System.currentTimeMillis() - hiddenAt : first;
                    attempt = view.getDeliveryAttempt();
                    back.add(text(view));
                    consumer.ack(view);
                }
            }
            System.out.println("hidden=" + hidden.size() + " back=" + back.equals(hidden) + " first_ms=" + first
                + " attempt=" + attempt);
        }
    }

    /** Two message groups; the first try of one message fails, and those behind it wait. */
    private static void ordered() throws Exception {
        try (Producer producer = producer("Ordered")) {
            for (int i = 0; i < 40; i++) {
                producer.send(message("Ordered", i / 2 + "").setMessageGroup("g" + i % 2).build());
            }
        }
        Map<String, List<String>> seen = new ConcurrentHashMap<>(Map.of("g0", new CopyOnWriteArrayList<>(),
            "g1", new CopyOnWriteArrayList<>()));
        AtomicInteger failed = new AtomicInteger();
        try (PushConsumer consumer = push("ordered_push", "Ordered", view -> {
            String group = view.getMessageGroup().orElseThrow();
            if (group.equals("g1") && text(view).equals("7") && failed.getAndIncrement() == 0) {
                return ConsumeResult.FAILURE;
            }
            seen.get(group).add(text(view));
            return ConsumeResult.SUCCESS;
        })) {
            until(30, () -> seen.get("g0").size() >= 20 && seen.get("g1").size() >= 20);
        }
        System.out.println("g0=" + seen.get("g0") + " g1=" + seen.get("g1") + " tries=" + failed);
    }

    /** A message for later arrives then; one that was recalled does not. */
    private static void timed() throws Exception {
        long due = System.currentTimeMillis() + 3_000;
        try (Producer producer = producer("Timed")) {
            producer.send(message("Timed", "later").setDeliveryTimestamp(due).build());
            SendReceipt receipt = producer.send(message("Timed", "recalled").setDeliveryTimestamp(due).build());
            producer.recallMessage("Timed", receipt.getRecallHandle());
        }
        Set<String> found = receive("timed_readers", "Timed", FilterExpression.SUB_ALL, 1, 20);
        System.out.println("early_ms=" + Math.max(0, due - System.currentTimeMillis()));
        found.addAll(receive("timed_readers", "Timed", FilterExpression.SUB_ALL, 1, 5));
        print("timed", found);
    }

    /** Committed, rolled back, and left to the check. */
    private static void transactions() throws Exception {
        AtomicInteger checks = new AtomicInteger();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(client).setTopics("Transactions")
            .setTransactionChecker(view -> {
                checks.incrementAndGet();
                return text(view).equals("checked") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            }).build()) {
            for (String what : List.of("committed", "rolled back", "checked", "checked and rolled back")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message("Transactions", what).build(), transaction);
                if (what.equals("committed")) {
                    transaction.commit();
                } else if (what.equals("rolled back")) {
                    transaction.rollback();
                }
            }
            Set<String> found = receive("transaction_readers", "Transactions", FilterExpression.SUB_ALL, 2, 60);
            until(30, () -> checks.get() >= 2);
            found.addAll(receive("transaction_readers", "Transactions", FilterExpression.SUB_ALL, 1, 5));
            print("transactions", found);
        }
    }

    /** A message that fails once comes again; one that always fails becomes a dead letter. */
    private static void push() throws Exception {
        Map<String, Integer> tries = new ConcurrentHashMap<>();
        try (Producer producer = producer("Pushed"); PushConsumer consumer = push("pushed", "Pushed", view -> {
            int time = tries.merge(text(view), 1, Integer::sum);
            return text(view).equals("never") || text(view).equals("twice") && time < 2
                ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        })) {
            for (String what : List.of("once", "twice", "never")) {
                producer.send(message("Pushed", what).build());
            }
            until(90, () -> tries.getOrDefault("never", 0) >= 3 && tries.getOrDefault("twice", 0) >= 2);
            Thread.sleep(3_000);
        }
        System.out.println("once=" + tries.get("once") + " twice=" + tries.get("twice") + " never=" + tries.get("never"));
    }

    /** Sends and consumes until the file STOP exists; then every acknowledged message must have come. */
    private static void kill(Path stop) throws Exception {
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Map<String, Integer> consumed = new ConcurrentHashMap<>();
        AtomicInteger failures = new AtomicInteger();
        long longest = 0;
        try (Producer producer = producer("Normal"); PushConsumer consumer = push("kill_readers", "Normal", view -> {
            consumed.merge(text(view), 1, Integer::sum);
            return ConsumeResult.SUCCESS;
        })) {
            long last = System.nanoTime();
            for (int number = 0; !Files.exists(stop); number++) {
                String body = "kill-" + number;
                try {
                    producer.send(message("Normal", body).setTag("kill").build());
                    acknowledged.add(body);
                    longest = Math.max(longest, System.nanoTime() - last);
                    last = System.nanoTime();
                } catch (Exception error) {
                    failures.incrementAndGet();
                }
                if (number % 100 == 0) {
                    System.out.println("acknowledged=" + acknowledged.size());
                }
                Thread.sleep(5);
            }
            until(90, () -> consumed.keySet().containsAll(acknowledged));
        }
        int sent = acknowledged.size();
        acknowledged.removeAll(consumed.keySet());
        System.out.println("sent=" + sent + " lost=" + acknowledged.size() + " failures=" + failures + " gap_ms="
            + longest / 1_000_000 + " repeats=" + consumed.values().stream().mapToInt(times -> times - 1).sum());
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(client).setTopics(topic).build();
    }

    private static SimpleConsumer consumer(String group, String topic, FilterExpression filter) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(client).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    private static PushConsumer push(String group, String topic, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(client).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).setMessageListener(listener).build();
    }

    /** Receives and acknowledges until so many came, or so many seconds passed. */
    private static Set<String> receive(String group, String topic, FilterExpression filter, int wanted, int seconds)
        throws Exception {
        Set<String> found = new TreeSet<>();
        try (SimpleConsumer consumer = consumer(group, topic, filter)) {
            long end = System.currentTimeMillis() + seconds * 1000L;
            while (found.size() < wanted && System.currentTimeMillis() < end) {
                for (MessageView view : consumer.receive(16, Duration.ofSeconds(30))) {
                    consumer.ack(view);
                    found.add(text(view));
                }
            }
        }
        return found;
    }

    private static void until(int seconds, BooleanSupplier done) throws InterruptedException {
        long end = System.currentTimeMillis() + seconds * 1000L;
        while (!done.getAsBoolean() && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
    }

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.duplicate().get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void print(String name, Set<String> found) {
        System.out.println(name + "=" + new ArrayList<>(found));
    }
}
