import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * LightQueues NAMESRV PARENT BROKER GROUP MESSAGES: messages of the topic PARENT into the light queues %LMQ%all and
 * %LMQ%odd, and back with a pull consumer. Prints what it saw as key=value lines.
 */
public final class LightQueues {
    private static final String ALL = "%LMQ%all";
    private static final String ODD = "%LMQ%odd";

    private static Message message(String parent, int number) {
        String body = Integer.toString(number);
        Message message = new Message(parent, "t" + number % 3, body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty(MessageConst.PROPERTY_INNER_MULTI_DISPATCH, number % 2 == 0 ? ALL : ALL + "," + ODD);
        return message;
    }

    private static List<MessageExt> pulled(DefaultMQPullConsumer consumer, MessageQueue queue, String tags) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        long offset = consumer.minOffset(queue);
        while (offset < consumer.maxOffset(queue)) {
            PullResult result = consumer.pull(queue, tags, offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                found.addAll(result.getMsgFoundList());
            }
            offset = result.getNextBeginOffset();
        }
        return found;
    }

    private static String bodies(List<MessageExt> messages) {
        List<String> bodies = new ArrayList<>();
        for (MessageExt message : messages) {
            bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
        }
        return String.join(",", bodies);
    }

    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String parent = args[1];
        String broker = args[2];
        int count = Integer.parseInt(args[4]);
        DefaultMQProducer producer = new DefaultMQProducer("light_producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int i = 0; i < count; i++) {
            producer.send(message(parent, i));
            Thread.sleep(2);
        }
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args[3]);
        consumer.setNamesrvAddr(namesrv);
        consumer.setRegisterTopics(Collections.singleton(parent));
        consumer.setBrokerSuspendMaxTimeMillis(15_000);
        consumer.start();
        consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .updateTopicRouteInfoFromNameServer(parent);
        MessageQueue all = new MessageQueue(ALL, broker, 0);
        MessageQueue odd = new MessageQueue(ODD, broker, 0);

        // A broker of RocketMQ dispatches a moment after it has answered.
        for (int i = 0; i < 100 && consumer.maxOffset(all) < count; i++) {
            Thread.sleep(50);
        }
        System.out.println("all_offsets=" + consumer.minOffset(all) + "-" + consumer.maxOffset(all));
        System.out.println("odd_offsets=" + consumer.minOffset(odd) + "-" + consumer.maxOffset(odd));
        List<MessageExt> messages = pulled(consumer, all, "*");
        System.out.println("all=" + bodies(messages));
        System.out.println("odd=" + bodies(pulled(consumer, odd, "*")));
        System.out.println("tagged=" + bodies(pulled(consumer, all, "t1")));
        MessageExt third = messages.get(3);
        System.out.println("topic=" + third.getTopic());
        System.out.println("property=" + third.getProperty(MessageConst.PROPERTY_INNER_MULTI_QUEUE_OFFSET));
        System.out.println("searched=" + consumer.searchOffset(all, third.getStoreTimestamp()));
        System.out.println("never=" + consumer.maxOffset(new MessageQueue("%LMQ%never", broker, 0)));

        consumer.getDefaultMQPullConsumerImpl().updateConsumeOffsetToBroker(all, 3, false);
        System.out.println("committed=" + consumer.getOffsetStore().readOffset(all, ReadOffsetType.READ_FROM_STORE));

        CompletableFuture<PullResult> waiting = new CompletableFuture<>();
        consumer.pullBlockIfNotFound(odd, "*", consumer.maxOffset(odd), 32, new PullCallback() {
            @Override
            public void onSuccess(PullResult result) {
                waiting.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                waiting.completeExceptionally(error);
            }
        });
        Thread.sleep(500);
        System.out.println("held=" + !waiting.isDone());
        producer.send(message(parent, 1001));
        System.out.println("woken=" + bodies(waiting.get(10, TimeUnit.SECONDS).getMsgFoundList()));
        consumer.shutdown();
        producer.shutdown();
    }
}
