import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** RequestReply NAMESRV TOPIC REQUESTS: requests that another client answers, one that nobody does, one asynchronous. */
public final class RequestReply {
    public static void main(String[] args) throws Exception {
        String namesrv = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        DefaultMQProducer replier = new DefaultMQProducer("replier");
        replier.setNamesrvAddr(namesrv);
        replier.setInstanceName("replier");
        replier.start();
        AtomicInteger replied = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("request_group");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("replier");
        consumer.setPullInterval(0);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (body.equals("silence")) {
                    continue;
                }
                try {
                    Message reply = MessageUtil.createReplyMessage(message,
                        ("re: " + body).getBytes(StandardCharsets.UTF_8));
                    SendResult result = replier.send(reply, 3000);
                    System.out.println("reply_topic=" + reply.getTopic() + " " + result.getSendStatus());
                    replied.incrementAndGet();
                } catch (Exception error) {
                    System.out.println("reply_error=" + error);
                    failed.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });

        DefaultMQProducer producer = new DefaultMQProducer("requester");
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("requester");
        producer.start();
        producer.send(new Message(topic, "silence".getBytes(StandardCharsets.UTF_8)));
        consumer.start();
        Thread.sleep(3000);
        int answered = 0;
        long slowest = 0;
        for (int i = 0; i < count; i++) {
            long began = System.currentTimeMillis();
            Message answer = producer.request(new Message(topic, ("q" + i).getBytes(StandardCharsets.UTF_8)), 10_000);
            slowest = Math.max(slowest, System.currentTimeMillis() - began);
            if (new String(answer.getBody(), StandardCharsets.UTF_8).equals("re: q" + i)) {
                answered++;
            }
        }
        System.out.println("answered=" + answered + " slowest_ms=" + slowest);
        try {
            producer.request(new Message(topic, "silence".getBytes(StandardCharsets.UTF_8)), 1000);
            System.out.println("silence=answered");
        } catch (RequestTimeoutException error) {
            System.out.println("silence=timeout");
        }
        CountDownLatch done = new CountDownLatch(1);
        producer.request(new Message(topic, "async".getBytes(StandardCharsets.UTF_8)), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                System.out.println("async=" + new String(message.getBody(), StandardCharsets.UTF_8));
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                System.out.println("async_error=" + error);
                done.countDown();
            }
        }, 10_000);
        done.await(15, TimeUnit.SECONDS);
        long deadline = System.currentTimeMillis() + 10_000;
        while (replied.get() < count + 1 && System.currentTimeMillis() < deadline) {
            Thread.sleep(20); // the requester has its reply before the replier has the answer
        }
        System.out.println("failed=" + failed.get());
        System.exit(0);
    }
}
