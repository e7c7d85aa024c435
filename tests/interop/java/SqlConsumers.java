import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** SqlConsumers NAMESRV TOPIC MESSAGES: what a push and a lite pull consumer with an SQL92 selector receive. */
public final class SqlConsumers {
    static final String SQL = "a between 1 and 98 and kind = 'even'";

    static boolean wanted(MessageExt message) {
        int a = Integer.parseInt(message.getUserProperty("a"));
        return a >= 1 && a <= 98 && a % 2 == 0;
    }

    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        DefaultMQProducer producer = new DefaultMQProducer("sql_producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "t", ("m" + i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("a", String.valueOf(i));
            message.putUserProperty("kind", i % 2 == 0 ? "even" : "odd");
            producer.send(message);
        }

        Set<String> pushed = ConcurrentHashMap.newKeySet();
        AtomicInteger foreign = new AtomicInteger();
        DefaultMQPushConsumer push = new DefaultMQPushConsumer("sql_push");
        push.setNamesrvAddr(namesrv);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.subscribe(topic, MessageSelector.bySql(SQL));
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (wanted(message)) {
                    pushed.add(message.getMsgId());
                } else {
                    foreign.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        long deadline = System.currentTimeMillis() + 60_000;
        while (pushed.size() < 49 && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(500);
        System.out.println("push=" + pushed.size() + " foreign=" + foreign.get());

        DefaultLitePullConsumer pull = new DefaultLitePullConsumer("sql_pull");
        pull.setNamesrvAddr(namesrv);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, MessageSelector.bySql(SQL));
        pull.start();
        int pulled = 0;
        int other = 0;
        deadline = System.currentTimeMillis() + 60_000;
        while (pulled < 49 && System.currentTimeMillis() < deadline) {
            List<MessageExt> messages = pull.poll(1000);
            for (MessageExt message : messages) {
                if (wanted(message)) {
                    pulled++;
                } else {
                    other++;
                }
            }
        }
        System.out.println("litepull=" + pulled + " foreign=" + other);

        DefaultMQPushConsumer wrong = new DefaultMQPushConsumer("sql_wrong");
        wrong.setNamesrvAddr(namesrv);
        wrong.subscribe(topic, MessageSelector.bySql("a >"));
        wrong.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            wrong.start();
            System.out.println("invalid=accepted ");
        } catch (MQClientException error) {
            System.out.println("invalid=" + error.getResponseCode() + " " + error.getErrorMessage());
        }
        System.exit(0);
    }
}
