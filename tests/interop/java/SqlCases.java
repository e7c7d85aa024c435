import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * SqlCases FILE OUT: evaluates expressions with RocketMQ's filter. A line of FILE is an expression, then properties,
 * separated by blanks, each in Base64; properties are name \1 value \2. A line of OUT is E for an expression that does
 * not compile, else T or F for each set of properties.
 */
public final class SqlCases {
    public static void main(String[] args) throws Exception {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split(" ");
            Expression expression;
            try {
                expression = FilterFactory.INSTANCE.get("SQL92").compile(text(parts[0]));
            } catch (Exception error) {
                out.append("E\n");
                continue;
            }
            for (int i = 1; i < parts.length; i++) {
                Map<String, String> properties = new HashMap<>();
                for (String pair : text(parts[i]).split("\u0002")) {
                    String[] both = pair.split("\u0001", 2);
                    if (both.length == 2) {
                        properties.put(both[0], both[1]);
                    }
                }
                Object value = null;
                try {
                    value = expression.evaluate(new MessageEvaluationContext(properties));
                } catch (Throwable error) {
                    // as ExpressionMessageFilter: no match
                }
                out.append(value instanceof Boolean && (Boolean) value ? 'T' : 'F');
            }
            out.append('\n');
        }
        Files.write(Path.of(args[1]), out.toString().getBytes(StandardCharsets.UTF_8));
        System.out.println("done");
        System.exit(0);
    }

    static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }
}
