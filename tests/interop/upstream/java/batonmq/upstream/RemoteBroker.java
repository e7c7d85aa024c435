package batonmq.upstream;

import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import org.mockito.stubbing.Answer;

/**
 * RocketMQ's controllers of a broker and of a name server for programs that run in another process. What a test asks
 * of them becomes a request; what no request can answer skips the test.
 */
public final class RemoteBroker {
    private final String address;

    private RemoteBroker(String address) {
        this.address = address;
    }

    static BrokerController at(String name, String address) {
        RemoteBroker broker = new RemoteBroker(address);
        RemoteConfig.Keys keys = new RemoteConfig.Keys() {
            @Override
            public Properties read() throws Exception {
                return Cluster.admin().getBrokerConfig(address);
            }

            @Override
            public void change(Properties changes) throws Exception {
                Cluster.admin().updateBrokerConfig(address, changes);
            }
        };
        BrokerConfig brokerConfig = RemoteConfig.of(BrokerConfig.class, new BrokerConfig(), name, keys);
        MessageStoreConfig storeConfig =
            RemoteConfig.of(MessageStoreConfig.class, new MessageStoreConfig(), name, keys);
        DefaultMessageStore store = remote(DefaultMessageStore.class, broker::store);
        TopicConfigManager topics = remote(TopicConfigManager.class, broker::topics);
        SubscriptionGroupManager groups = remote(SubscriptionGroupManager.class, broker::groups);
        ConsumerOffsetManager offsets = remote(ConsumerOffsetManager.class, broker::offsets);
        return remote(BrokerController.class, call -> {
            switch (call.getMethod().getName()) {
                case "getBrokerAddr": return address;
                case "getBrokerConfig": return brokerConfig;
                case "getMessageStoreConfig": return storeConfig;
                case "getMessageStore": return store;
                case "getTopicConfigManager": return topics;
                case "getSubscriptionGroupManager": return groups;
                case "getConsumerOffsetManager": return offsets;
                case "registerBrokerAll": return null; // a broker registers by itself when a topic has changed
                default: throw inProcessOnly(call);
            }
        });
    }

    public static NamesrvController nameServer() {
        RemoteConfig.Keys keys = new RemoteConfig.Keys() {
            @Override
            public Properties read() throws Exception {
                return Cluster.admin().getNameServerConfig(null).values().iterator().next();
            }

            @Override
            public void change(Properties changes) throws Exception {
                Cluster.admin().updateNameServerConfig(changes, null);
            }
        };
        NamesrvConfig config = RemoteConfig.of(NamesrvConfig.class, new NamesrvConfig(), "name server", keys);
        return remote(NamesrvController.class, call -> {
            if (call.getMethod().getName().equals("getNamesrvConfig")) {
                return config;
            }
            throw inProcessOnly(call);
        });
    }

    private static <T> T remote(Class<T> type, Answer<Object> answer) {
        return Mockito.mock(type, answer);
    }

    private static RuntimeException inProcessOnly(InvocationOnMock call) {
        Class<?> type = call.getMethod().getDeclaringClass();
        return Cluster.inProcessOnly(type.getSimpleName() + "." + call.getMethod().getName());
    }

    private Object store(InvocationOnMock call) throws Exception {
        switch (call.getMethod().getName()) {
            case "getMaxOffsetInQueue":
                return Cluster.api().getMaxOffset(address, queue(call.getArgument(0), call.getArgument(1)),
                    Cluster.TIMEOUT_MS);
            case "getMinOffsetInQueue":
                return Cluster.api().getMinOffset(address, queue(call.getArgument(0), call.getArgument(1)),
                    Cluster.TIMEOUT_MS);
            case "dispatchBehindBytes":
                Map<String, String> stats = Cluster.admin().fetchBrokerRuntimeStats(address).getTable();
                return Long.valueOf(stats.get("dispatchBehindBytes"));
            default:
                throw inProcessOnly(call);
        }
    }

    private Object topics(InvocationOnMock call) throws Exception {
        switch (call.getMethod().getName()) {
            case "getTopicConfigTable":
                return Cluster.admin().getAllTopicConfig(address, Cluster.TIMEOUT_MS).getTopicConfigTable();
            case "updateTopicConfig":
                Cluster.admin().createAndUpdateTopicConfig(address, call.getArgument(0));
                return null;
            default:
                throw inProcessOnly(call);
        }
    }

    private Object groups(InvocationOnMock call) throws Exception {
        switch (call.getMethod().getName()) {
            case "findSubscriptionGroupConfig":
                return Cluster.admin().examineSubscriptionGroupConfig(address, call.getArgument(0));
            case "updateSubscriptionGroupConfig":
                Cluster.admin().createAndUpdateSubscriptionGroupConfig(address, call.getArgument(0));
                return null;
            default:
                throw inProcessOnly(call);
        }
    }

    private Object offsets(InvocationOnMock call) throws Exception {
        String name = call.getMethod().getName();
        if (!name.equals("queryOffset") && !name.equals("queryPullOffset") || call.getArguments().length != 3) {
            throw inProcessOnly(call);
        }
        ConsumeStats stats = Cluster.admin().examineConsumeStats(address, call.getArgument(0), call.getArgument(1),
            (long) Cluster.TIMEOUT_MS);
        int queueId = call.getArgument(2);
        for (Map.Entry<MessageQueue, OffsetWrapper> entry : stats.getOffsetTable().entrySet()) {
            if (entry.getKey().getQueueId() == queueId && entry.getKey().getTopic().equals(call.getArgument(1))) {
                OffsetWrapper offsets = entry.getValue();
                return name.equals("queryOffset") ? offsets.getConsumerOffset() : offsets.getPullOffset();
            }
        }
        return -1L;
    }

    private static MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, "", queueId);
    }
}
