package batonmq.upstream;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.common.MixAll;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;

/**
 * A configuration object whose getters read a running program's keys and whose setters change them, by the
 * requests that mqadmin uses. Runner puts the keys back after each class: some tests do not.
 */
final class RemoteConfig {
    interface Keys {
        Properties read() throws Exception;

        void change(Properties changes) throws Exception;
    }

    private static final List<RemoteConfig> ALL = new ArrayList<>();

    private final String where;
    private final Keys keys;
    private final Object defaults;
    private final Map<String, String> before = new LinkedHashMap<>();

    private RemoteConfig(String where, Keys keys, Object defaults) {
        this.where = where;
        this.keys = keys;
        this.defaults = defaults;
    }

    static <T> T of(Class<T> type, T defaults, String where, Keys keys) {
        RemoteConfig config = new RemoteConfig(where, keys, defaults);
        ALL.add(config);
        return Mockito.mock(type, config::answer);
    }

    static void restoreAll() {
        for (RemoteConfig config : ALL) {
            config.before.forEach(config::set);
            config.before.clear();
        }
    }

    private Object answer(InvocationOnMock call) throws Exception {
        Method method = call.getMethod();
        String name = method.getName();
        if (name.startsWith("set") && call.getArguments().length == 1) {
            String key = key(name.substring(3));
            String now = keys.read().getProperty(key);
            if (now != null) {
                before.putIfAbsent(key, now);
            }
            set(key, String.valueOf((Object) call.getArgument(0)));
            return null;
        }
        if (!name.startsWith("get") && !name.startsWith("is")) {
            throw Cluster.inProcessOnly(method.getDeclaringClass().getSimpleName() + "." + name);
        }
        String key = key(name.startsWith("is") ? name.substring(2) : name.substring(3));
        String value = keys.read().getProperty(key);
        if (value == null) {
            Runner.note(where + " has no " + key + ": the test gets RocketMQ's default");
            return method.invoke(defaults, call.getArguments());
        }
        return converted(value, method.getReturnType());
    }

    /** A key that the program does not have or not change while it runs is reported, and the test goes on. */
    private void set(String key, String value) {
        Properties change = new Properties();
        change.setProperty(key, value);
        try {
            keys.change(change);
        } catch (Exception refusal) {
            Runner.note(where + " refused " + MixAll.properties2String(change).trim() + ": " + refusal.getMessage());
        }
    }

    private static String key(String property) {
        return Character.toLowerCase(property.charAt(0)) + property.substring(1);
    }

    private static Object converted(String value, Class<?> type) {
        if (type == boolean.class) {
            return Boolean.valueOf(value);
        }
        if (type == int.class) {
            return Integer.valueOf(value);
        }
        if (type == long.class) {
            return Long.valueOf(value);
        }
        if (type == String.class) {
            return value;
        }
        throw Cluster.inProcessOnly("a value of " + type);
    }
}
