package batonmq.upstream;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.AssumptionViolatedException;

/**
 * The running cluster that the tests use, from system properties: upstream.namesrv is HOST:PORT, upstream.cluster a
 * name, upstream.brokers NAME@HOST:PORT for each broker, with commas between them.
 */
public final class Cluster {
    public static final String NAMESRV = required("upstream.namesrv");
    public static final String NAME = required("upstream.cluster");
    public static final int TIMEOUT_MS = 5_000;
    public static final List<String> NAMES = new ArrayList<>();
    public static final List<BrokerController> BROKERS = new ArrayList<>();
    private static DefaultMQAdminExt admin;

    static {
        for (String broker : required("upstream.brokers").split(",")) {
            int at = broker.indexOf('@');
            NAMES.add(broker.substring(0, at));
            BROKERS.add(RemoteBroker.at(broker.substring(0, at), broker.substring(at + 1)));
        }
    }

    private Cluster() {
    }

    static String required(String property) {
        String value = System.getProperty(property);
        if (value == null) {
            throw new IllegalStateException("system property " + property + " is missing");
        }
        return value;
    }

    /** The connection of the remote controllers to their processes; the tests have others. */
    static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt starting = new DefaultMQAdminExt(TIMEOUT_MS);
            starting.setInstanceName("upstream-" + System.nanoTime());
            starting.setNamesrvAddr(NAMESRV);
            starting.start();
            admin = starting;
        }
        return admin;
    }

    static MQClientAPIImpl api() throws Exception {
        return admin().getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    /** What a test gets for a call that only a server inside its own process can answer: the test is skipped. */
    static AssumptionViolatedException inProcessOnly(String call) {
        return new AssumptionViolatedException(call + " needs the server in the test's process");
    }
}
