import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.*;
import org.apache.rocketmq.remoting.protocol.admin.*;
import org.apache.rocketmq.remoting.protocol.body.*;
import org.apache.rocketmq.remoting.protocol.header.*;
import org.apache.rocketmq.remoting.protocol.heartbeat.*;
import org.apache.rocketmq.remoting.protocol.route.*;
import org.apache.rocketmq.remoting.protocol.subscription.*;

/**
 * Bytes that the real RocketMQ writes, for tests/data/protocol.
 *
 *   Golden write DIR   frames (*.bin) and bodies (*.json) as Java encodes them
 *   Golden read DIR    decode every body in DIR with Java and write it again as NAME.out
 */
public class Golden {
    static final Map<String, Class<?>> BODIES = new TreeMap<>();
    static final Map<String, Object> SAMPLES = new TreeMap<>();

    static void body(String name, Object sample) {
        BODIES.put(name, sample.getClass());
        SAMPLES.put(name, sample);
    }

    static void samples() {
        MessageQueue queue = new MessageQueue("orders", "broker-a", 3);

        TopicRouteData route = new TopicRouteData();
        QueueData queues = new QueueData();
        queues.setBrokerName("broker-a");
        queues.setReadQueueNums(4);
        queues.setWriteQueueNums(8);
        queues.setPerm(6);
        route.setQueueDatas(List.of(queues));
        HashMap<Long, String> addresses = new HashMap<>();
        addresses.put(0L, "10.0.0.1:10911");
        addresses.put(2L, "10.0.0.2:10911");
        BrokerData broker = new BrokerData("DefaultCluster", "broker-a", addresses, true);
        route.setBrokerDatas(List.of(broker));
        route.setFilterServerTable(new HashMap<>());
        body("TopicRouteData", route);

        ClusterInfo cluster = new ClusterInfo();
        cluster.setBrokerAddrTable(Map.of("broker-a", broker));
        cluster.setClusterAddrTable(Map.of("DefaultCluster", Set.of("broker-a")));
        body("ClusterInfo", cluster);

        TopicStatsTable stats = new TopicStatsTable();
        TopicOffset offset = new TopicOffset();
        offset.setMinOffset(1);
        offset.setMaxOffset(20);
        offset.setLastUpdateTimestamp(1700000000000L);
        Map<MessageQueue, TopicOffset> offsets = new HashMap<>();
        offsets.put(queue, offset);
        stats.setOffsetTable(offsets);
        body("TopicStatsTable", stats);

        ConsumeStats consume = new ConsumeStats();
        OffsetWrapper wrapper = new OffsetWrapper();
        wrapper.setBrokerOffset(20);
        wrapper.setConsumerOffset(7);
        wrapper.setLastTimestamp(1700000000001L);
        Map<MessageQueue, OffsetWrapper> consumed = new HashMap<>();
        consumed.put(queue, wrapper);
        consume.setOffsetTable(consumed);
        consume.setConsumeTps(2.5);
        body("ConsumeStats", consume);

        ResetOffsetBody reset = new ResetOffsetBody();
        reset.setOffsetTable(new HashMap<>(Map.of(queue, 12L)));
        body("ResetOffsetBody", reset);

        GetConsumerStatusBody status = new GetConsumerStatusBody();
        status.setMessageQueueTable(new HashMap<>(Map.of(queue, 12L)));
        status.setConsumerTable(new HashMap<>(Map.of("client-1", new HashMap<>(Map.of(queue, 12L)))));
        body("GetConsumerStatusBody", status);

        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("10.0.0.9@7");
        ProducerData producer = new ProducerData();
        producer.setGroupName("producers");
        heartbeat.getProducerDataSet().add(producer);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("consumers");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        SubscriptionData subscription = new SubscriptionData("orders", "a || b");
        subscription.setSubVersion(1700000000002L);
        subscription.getTagsSet().add("a");
        subscription.getCodeSet().add("a".hashCode());
        consumer.getSubscriptionDataSet().add(subscription);
        heartbeat.getConsumerDataSet().add(consumer);
        body("HeartbeatData", heartbeat);

        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000003L);
        version.getCounter().set(5);
        version.setStateVersion(2);
        TopicConfigSerializeWrapper topics = new TopicConfigSerializeWrapper();
        TopicConfig topic = new TopicConfig("orders", 8, 8, 6);
        topic.getAttributes().put("message.type", "NORMAL");
        topics.getTopicConfigTable().put("orders", topic);
        topics.setDataVersion(version);
        body("TopicConfigSerializeWrapper", topics);

        SubscriptionGroupWrapper groups = new SubscriptionGroupWrapper();
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("consumers");
        groups.getSubscriptionGroupTable().put("consumers", group);
        groups.setDataVersion(version);
        body("SubscriptionGroupWrapper", groups);

        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup("consumers");
        lock.setClientId("10.0.0.9@7");
        lock.setMqSet(new HashSet<>(Set.of(queue)));
        body("LockBatchRequestBody", lock);
        LockBatchResponseBody locked = new LockBatchResponseBody();
        locked.setLockOKMQSet(new HashSet<>(Set.of(queue)));
        body("LockBatchResponseBody", locked);

        HARuntimeInfo ha = new HARuntimeInfo();
        ha.setMaster(true);
        ha.setMasterCommitLogMaxOffset(4096);
        ha.setInSyncSlaveNums(1);
        HARuntimeInfo.HAConnectionRuntimeInfo connection = new HARuntimeInfo.HAConnectionRuntimeInfo();
        connection.setAddr("10.0.0.2:40000");
        connection.setSlaveAckOffset(4000);
        connection.setDiff(96);
        connection.setInSync(true);
        ha.getHaConnectionInfo().add(connection);
        body("HARuntimeInfo", ha);

        EpochEntryCache epochs =
            new EpochEntryCache("DefaultCluster", "broker-a", 1L, List.of(new EpochEntry(1, 0), new EpochEntry(2, 500)), 900L);
        body("EpochEntryCache", epochs);

        body("SyncStateSet", new SyncStateSet(new HashSet<>(Set.of(1L, 2L)), 3));

        QueryCorrectionOffsetBody correction = new QueryCorrectionOffsetBody();
        correction.setCorrectionOffsets(new HashMap<>(Map.of(0, 5L, 1, 6L)));
        body("QueryCorrectionOffsetBody", correction);

        ConsumerConnection connections = new ConsumerConnection();
        Connection client = new Connection();
        client.setClientId("10.0.0.9@7");
        client.setClientAddr("10.0.0.9:50000");
        client.setLanguage(LanguageCode.JAVA);
        client.setVersion(475);
        connections.getConnectionSet().add(client);
        connections.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        connections.setMessageModel(MessageModel.CLUSTERING);
        connections.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        body("ConsumerConnection", connections);

        KVTable table = new KVTable();
        table.getTable().put("msgPutTotalTodayNow", "12");
        body("KVTable", table);
    }

    static void frame(Path dir, String name, RemotingCommand command, byte[] body) throws Exception {
        for (SerializeType type : SerializeType.values()) {
            command.setSerializeTypeCurrentRPC(type);
            command.setBody(body);
            ByteBuffer buffer = command.encode();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            Files.write(dir.resolve(name + "." + type.name().toLowerCase() + ".bin"), bytes);
        }
    }

    static RemotingCommand opaque(RemotingCommand command, int opaque) {
        command.setOpaque(opaque);
        command.setVersion(475);
        return command;
    }

    static void write(Path dir) throws Exception {
        SendMessageRequestHeader send = new SendMessageRequestHeader();
        send.setProducerGroup("producers");
        send.setTopic("orders");
        send.setDefaultTopic("TBW102");
        send.setDefaultTopicQueueNums(4);
        send.setQueueId(3);
        send.setSysFlag(1);
        send.setBornTimestamp(1700000000004L);
        send.setFlag(9);
        send.setProperties("KEYS\001k1 k2\002TAGS\001a\002name\001gr\u00fcn\u20ac");
        send.setReconsumeTimes(2);
        send.setUnitMode(false);
        send.setMaxReconsumeTimes(16);
        send.setBatch(false);
        send.setBrokerName("broker-a");
        byte[] body = "a body \u20ac".getBytes(StandardCharsets.UTF_8);
        frame(dir, "send-v2", opaque(RemotingCommand.createRequestCommand(RequestCode.SEND_MESSAGE_V2,
            SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send)), 77), body);

        PullMessageResponseHeader pull = new PullMessageResponseHeader();
        pull.setSuggestWhichBrokerId(1L);
        pull.setNextBeginOffset(32L);
        pull.setMinOffset(0L);
        pull.setMaxOffset(4000000000L);
        RemotingCommand answer = opaque(RemotingCommand.createResponseCommandWithHeader(ResponseCode.PULL_NOT_FOUND, pull), 78);
        answer.setRemark("nothing \u00fcber");
        frame(dir, "pull-response", answer, null);

        GetMaxOffsetRequestHeader max = new GetMaxOffsetRequestHeader();
        max.setTopic("orders");
        max.setQueueId(0);
        max.setCommitted(false);
        frame(dir, "get-max-offset", opaque(RemotingCommand.createRequestCommand(RequestCode.GET_MAX_OFFSET, max), -5), null);

        UnregisterClientRequestHeader leave = new UnregisterClientRequestHeader();
        leave.setClientID("10.0.0.9@7");
        leave.setConsumerGroup("consumers");
        RemotingCommand oneway = opaque(RemotingCommand.createRequestCommand(RequestCode.UNREGISTER_CLIENT, leave), 79);
        oneway.markOnewayRPC();
        frame(dir, "unregister-client", oneway, null);

        for (Map.Entry<String, Object> sample : SAMPLES.entrySet()) {
            Files.write(dir.resolve(sample.getKey() + ".json"), RemotingSerializable.encode(sample.getValue()));
        }
    }

    static void read(Path dir) throws Exception {
        for (Map.Entry<String, Class<?>> entry : BODIES.entrySet()) {
            Path file = dir.resolve(entry.getKey() + ".json");
            if (Files.exists(file)) {
                Object decoded = RemotingSerializable.decode(Files.readAllBytes(file), entry.getValue());
                Files.write(dir.resolve(entry.getKey() + ".out"), RemotingSerializable.encode(decoded));
            }
        }
    }

    public static void main(String[] args) throws Exception {
        samples();
        if (args[0].equals("write")) {
            write(Path.of(args[1]));
        } else {
            read(Path.of(args[1]));
        }
    }
}
