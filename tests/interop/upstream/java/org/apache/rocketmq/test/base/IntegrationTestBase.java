package org.apache.rocketmq.test.base;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.junit.AssumptionViolatedException;

/** Stands in for the class of this name in RocketMQ's test jar: creates topics, but starts no servers. */
public class IntegrationTestBase {
    private static final int TOPIC_TIMEOUT_S = 20;

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        throw new AssumptionViolatedException("createAndStartBroker needs the server in the test's process");
    }

    public static boolean initTopic(String topic, String namesrv, String target, CQType queues) {
        return initTopic(topic, namesrv, target, BaseConf.QUEUE_NUMBERS, queues, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String namesrv, String target, TopicMessageType messages) {
        return initTopic(topic, namesrv, target, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, messages);
    }

    public static boolean initTopic(String topic, String namesrv, String target, int count, CQType queues) {
        return initTopic(topic, namesrv, target, count, queues, TopicMessageType.NORMAL);
    }

    /** `target` is a cluster or a broker. Attributes are given only where they differ from the default. */
    public static boolean initTopic(
        String topic, String namesrv, String target, int count, CQType queues, TopicMessageType messages) {
        Map<String, String> attributes = new LinkedHashMap<>();
        if (queues != CQType.SimpleCQ) {
            attributes.put("+queue.type", queues.name());
        }
        if (messages != TopicMessageType.NORMAL) {
            attributes.put("+message.type", messages.name());
        }
        return MQAdminTestUtils.createTopic(namesrv, target, topic, count, attributes, TOPIC_TIMEOUT_S);
    }
}
