import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageVersion;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.PutMessageContext;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Writes records, wire batches and compressed bodies, made by RocketMQ's own classes, into a directory. */
public class MessageBytes {
    static final InetSocketAddress V4 = new InetSocketAddress("10.1.2.3", 10911);
    static final InetSocketAddress V6 = new InetSocketAddress("2001:db8::1", 54321);
    static Path out;

    static void write(String name, byte[] data) throws Exception {
        Files.write(out.resolve(name), data);
    }

    static void fill(MessageExtBrokerInner m, String topic, InetSocketAddress born, InetSocketAddress store) {
        m.setTopic(topic);
        m.setQueueId(3);
        m.setFlag(-7);
        m.setSysFlag(0);
        m.setBornTimestamp(1700000000123L);
        m.setStoreTimestamp(1700000000456L);
        m.setBornHost(born);
        m.setStoreHost(store);
        if (born == V6) {
            m.setBornHostV6Flag();
        }
        if (store == V6) {
            m.setStoreHostAddressV6Flag();
        }
        m.setReconsumeTimes(2);
        m.setPreparedTransactionOffset(99);
        m.setVersion(topic.length() > 127 ? MessageVersion.MESSAGE_VERSION_V2 : MessageVersion.MESSAGE_VERSION_V1);
    }

    static void record(String name, String topic, InetSocketAddress born, InetSocketAddress store) throws Exception {
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        fill(m, topic, born, store);
        m.setBody("Hällo RocketMQ".getBytes(StandardCharsets.UTF_8));
        m.setBodyCRC(org.apache.rocketmq.common.UtilAll.crc32(m.getBody()));
        m.setQueueOffset(1234567890123L);
        m.setPropertiesString("KEYS\u0001k1 k2\u0002TAGS\u0001TagÄ\u0002UNIQ_KEY\u00010A01\u0002");
        MessageExtEncoder encoder = new MessageExtEncoder(new MessageStoreConfig());
        encoder.encode(m);
        ByteBuffer buffer = encoder.getEncoderBuffer();
        byte[] data = new byte[buffer.getInt(0)];
        buffer.position(0);
        buffer.get(data);
        // what the append puts in afterwards
        ByteBuffer.wrap(data).putLong(28, 9876543210L);
        write(name, data);
    }

    public static void main(String[] args) throws Exception {
        out = Path.of(args[0]);
        record("record-v1-44.bin", "TopicTest", V4, V4);
        record("record-v1-64.bin", "TopicTest", V6, V4);
        record("record-v1-46.bin", "TopicTest", V4, V6);
        record("record-v1-66.bin", "TopicTest", V6, V6);
        record("record-v2-44.bin", "x".repeat(200), V4, V4);
        record("record-v2-66.bin", "x".repeat(200), V6, V6);

        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message m = new Message("TopicTest", ("body " + i).getBytes(StandardCharsets.UTF_8));
            m.setFlag(i - 1);
            m.putUserProperty("name", "välue" + i);
            messages.add(m);
        }
        byte[] wire = MessageDecoder.encodeMessages(messages);
        write("batch-wire.bin", wire);
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, "TopicTest", V4, V4);
        batch.setBody(wire);
        MessageExtEncoder encoder = new MessageExtEncoder(new MessageStoreConfig());
        ByteBuffer stored = encoder.encode(batch, new PutMessageContext("TopicTest-3"));
        byte[] data = new byte[stored.limit()];
        stored.position(0);
        stored.get(data);
        // what the append puts in afterwards
        long queueOffset = 5;
        for (int at = 0; at < data.length; at += ByteBuffer.wrap(data).getInt(at)) {
            ByteBuffer.wrap(data).putLong(at + 20, queueOffset++).putLong(at + 28, 1000 + at);
        }
        write("batch-stored.bin", data);

        byte[] body = "some text that repeats itself ".repeat(50).getBytes(StandardCharsets.UTF_8);
        for (CompressionType type : CompressionType.values()) {
            write("body-" + type.name().toLowerCase() + ".bin", CompressorFactory.getCompressor(type).compress(body, 5));
        }
        StringBuilder facts = new StringBuilder();
        facts.append(MessageDecoder.createMessageId(V4, 9876543210L)).append('\n');
        facts.append(MessageDecoder.createMessageId(V6, 9876543210L)).append('\n');
        for (String text : new String[] {"TagA", "TagÄ", "ü€😀", "TopicTest#k1"}) {
            facts.append(text).append(' ').append(text.hashCode()).append('\n');
        }
        write("facts.txt", facts.toString().getBytes(StandardCharsets.UTF_8));
        // args[1]: bodies compressed by the other side; each must inflate to the same text
        if (args.length > 1) {
            for (CompressionType type : CompressionType.values()) {
                byte[] packed = Files.readAllBytes(Path.of(args[1]).resolve("body-" + type.name().toLowerCase() + ".bin"));
                byte[] back = CompressorFactory.getCompressor(type).decompress(packed);
                if (!java.util.Arrays.equals(back, body)) {
                    throw new IllegalStateException(type + " differs");
                }
            }
            System.out.println("INFLATED");
        }
    }
}
