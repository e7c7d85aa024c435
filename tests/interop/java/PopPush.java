import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;

/** Two push consumers of one group whose mode is POP; every tenth message fails once. */
public class PopPush {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0], topic = args[1], group = args[2];
        int count = Integer.parseInt(args[3]);
        System.setProperty("rocketmq.serialize.type", args[4]);
        Map<String, AtomicInteger> seen = new ConcurrentHashMap<>();
        AtomicInteger receipts = new AtomicInteger(), retried = new AtomicInteger(), done = new AtomicInteger();
        AtomicInteger[] of = {new AtomicInteger(), new AtomicInteger()};
        DefaultMQPushConsumer[] consumers = new DefaultMQPushConsumer[2];
        for (int n = 0; n < 2; n++) {
            final int number = n;
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setInstanceName("pop" + n);
            consumer.setNamesrvAddr(namesrv);
            consumer.setClientRebalance(false);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                ConsumeConcurrentlyStatus status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                for (var message : messages) {
                    if (message.getProperty(MessageConst.PROPERTY_POP_CK) != null) {
                        receipts.incrementAndGet();
                    }
                    int times = seen.computeIfAbsent(message.getKeys(), k -> new AtomicInteger()).incrementAndGet();
                    of[number].incrementAndGet();
                    if (Integer.parseInt(message.getKeys()) % 10 == 0 && message.getReconsumeTimes() == 0) {
                        context.setDelayLevelWhenNextConsume(0);
                        status = ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    } else {
                        done.incrementAndGet();
                        if (message.getReconsumeTimes() > 0 && message.getTopic().equals(topic)) {
                            retried.incrementAndGet();
                        }
                    }
                }
                return status;
            });
            consumer.start();
            consumers[n] = consumer;
        }
        DefaultMQProducer producer = new DefaultMQProducer("pop_producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        Thread.sleep(3_000); // until both consumers pop
        for (int n = 0; n < count; n++) {
            producer.send(new Message(topic, "", String.valueOf(n), ("body" + n).getBytes()));
        }
        long end = System.currentTimeMillis() + 60_000;
        while (done.get() < count && System.currentTimeMillis() < end) {
            Thread.sleep(200);
        }
        Thread.sleep(3_000);
        int twice = 0;
        for (int n = 0; n < count; n++) {
            AtomicInteger times = seen.get(String.valueOf(n));
            if (times != null && times.get() > (n % 10 == 0 ? 2 : 1)) {
                twice++;
            }
        }
        System.out.println("consumed=" + done.get() + " of=" + count + " receipts=" + receipts.get()
            + " retried=" + retried.get() + " more_than_needed=" + twice
            + " first=" + of[0].get() + " second=" + of[1].get());
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        producer.shutdown();
        // The client does not shut down the threads that consume popped messages.
        System.exit(0);
    }
}
