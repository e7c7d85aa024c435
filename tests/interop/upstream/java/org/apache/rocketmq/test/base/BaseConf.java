package org.apache.rocketmq.test.base;

import batonmq.upstream.Cluster;
import batonmq.upstream.RemoteBroker;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ForkJoinPool;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Stands in for the class of this name in RocketMQ's test jar, with the members that its tests use. Theirs starts a
 * name server and three brokers in the process; here the servers are those of {@link Cluster}.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = Cluster.NAMESRV;
    protected static final String CLUSTER_NAME = Cluster.NAME;
    protected static final String BROKER1_NAME = Cluster.NAMES.get(0);
    protected static final String BROKER2_NAME = Cluster.NAMES.get(1);
    protected static final String BROKER3_NAME = Cluster.NAMES.get(2);
    protected static final int BROKER_NUM = 3;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 120_000;
    protected static final int QUEUE_NUMBERS = 8;

    protected static NamesrvController namesrvController = RemoteBroker.nameServer();
    protected static BrokerController brokerController1 = Cluster.BROKERS.get(0);
    protected static BrokerController brokerController2 = Cluster.BROKERS.get(1);
    protected static BrokerController brokerController3 = Cluster.BROKERS.get(2);
    protected static List<BrokerController> brokerControllerList = Cluster.BROKERS;
    protected static Map<String, BrokerController> brokerControllerMap = new LinkedHashMap<>();
    protected static List<Object> mqClients = new CopyOnWriteArrayList<>();
    protected static boolean debug = false;

    static {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, String.valueOf(MQVersion.CURRENT_VERSION));
        for (int i = 0; i < Cluster.NAMES.size(); i++) {
            brokerControllerMap.put(Cluster.NAMES.get(i), Cluster.BROKERS.get(i));
        }
        try {
            MQAdminTestUtils.startAdmin(NAMESRV_ADDR);
        } catch (MQClientException failure) {
            throw new ExceptionInInitializerError(failure);
        }
    }

    /** The servers were ready before the tests began. */
    public static void waitBrokerRegistered(String namesrv, String cluster, int brokers) {
    }

    public boolean awaitDispatchMs(long limitMs) throws Exception {
        for (long end = System.currentTimeMillis() + limitMs; System.currentTimeMillis() <= end; Thread.sleep(100)) {
            if (brokerControllerList.stream().allMatch(each -> each.getMessageStore().dispatchBehindBytes() == 0)) {
                return true;
            }
        }
        return false;
    }

    public static Set<String> getBrokers() {
        return new HashSet<>(Cluster.NAMES);
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType messages) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), messages);
    }

    public static String initTopicWithName(String topic) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME);
    }

    public static String initTopicWithName(String topic, TopicMessageType messages) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME, messages);
    }

    public static String initTopicOnSampleTopicBroker(String broker) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), broker);
    }

    public static String initTopicOnSampleTopicBroker(String broker, TopicMessageType messages) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), broker, messages);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String broker) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, broker, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String topic, String broker, TopicMessageType messages) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, broker, messages);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        return initConsumerGroup(config);
    }

    public static String initConsumerGroup(SubscriptionGroupConfig config) {
        MQAdminTestUtils.createSub(NAMESRV_ADDR, CLUSTER_NAME, config);
        return config.getGroupName();
    }

    public static DefaultMQAdminExt getAdmin(String namesrv) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3_000);
        admin.setPollNameServerInterval(100);
        admin.setNamesrvAddr(namesrv);
        return kept(admin);
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic) {
        return getProducer(namesrv, topic, false);
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic, boolean tls) {
        return kept(new RMQNormalProducer(namesrv, topic, tls));
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(namesrv, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String namesrv, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(namesrv, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String namesrv, String topic) {
        return kept(new RMQAsyncSendProducer(namesrv, topic));
    }

    public static RMQNormalConsumer getConsumer(String namesrv, String topic, String tags, AbstractListener listener) {
        return getConsumer(namesrv, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String topic, String tags, AbstractListener listener, boolean tls) {
        return getConsumer(namesrv, initConsumerGroup(), topic, tags, listener, tls);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String group, String topic, String tags, AbstractListener listener) {
        return getConsumer(namesrv, group, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String group, String topic, String tags, AbstractListener listener, boolean tls) {
        return kept(ConsumerFactory.getRMQNormalConsumer(namesrv, group, topic, tags, listener, tls));
    }

    public static void shutdown() {
        List<Object> ending = new ArrayList<>(mqClients);
        mqClients.removeAll(ending);
        shutdown(ending);
    }

    /** In the background: a client waits for its threads. */
    public static void shutdown(List<Object> clients) {
        for (Object client : clients) {
            ForkJoinPool.commonPool().execute(() -> shutDown(client));
        }
    }

    private static void shutDown(Object client) {
        try {
            Method method = client.getClass().getMethod("shutdown");
            method.setAccessible(true);
            method.invoke(client);
        } catch (ReflectiveOperationException failure) {
            System.err.println("cannot shut down " + client + ": " + failure);
        }
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
