package batonmq.upstream;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.junit.AssumptionViolatedException;
import org.junit.Ignore;
import org.junit.internal.runners.statements.FailOnTimeout;
import org.junit.runner.Description;
import org.junit.runner.Request;
import org.junit.runner.RunWith;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.junit.runner.notification.RunNotifier;
import org.junit.runners.BlockJUnit4ClassRunner;
import org.junit.runners.model.FrameworkMethod;
import org.junit.runners.model.InitializationError;
import org.junit.runners.model.Statement;
import org.junit.runners.model.TestTimedOutException;

/**
 * Runner METHOD_LIMIT_S CLASS_LIMIT_S CLASS ...: runs JUnit 4 classes, one after the other. Each method gives one line
 * on standard output, a class a last one:
 *
 * <pre>
 * PASS|FAIL|SKIP CLASS#METHOD MILLISECONDS REASON
 * NOTE CLASS#METHOD TEXT
 * DONE CLASS
 * </pre>
 *
 * After a class with a method over the limit, whose threads may still run, the process ends with 75 and the classes
 * behind it have not run; the same if a class takes too long.
 */
public final class Runner {
    private static final int DIRTY = 75;
    private static final PrintStream OUT = System.out;
    private static final Set<String> NOTED = ConcurrentHashMap.newKeySet();
    private static final String ADVERTISEMENT = "For more information, please visit the url";
    private static volatile String current = "-";

    private final Class<?> type;
    private final Map<String, String> left = new LinkedHashMap<>();
    private volatile boolean dirty;
    private String ofClass = "FAIL";
    private String reasonOfClass = "not run";

    private Runner(Class<?> type) {
        this.type = type;
    }

    public static void main(String[] arguments) throws Exception {
        ShortOutput printed = new ShortOutput(System.err);
        System.setErr(new PrintStream(printed));
        System.setOut(System.err); // what the tests print
        long methodLimitS = Long.parseLong(arguments[0]);
        long classLimitS = Long.parseLong(arguments[1]);
        int code = 0;
        try {
            for (int i = 2; i < arguments.length && code == 0; i++) {
                printed.beginClass();
                Runner runner = new Runner(Class.forName(arguments[i]));
                runner.run(methodLimitS, classLimitS);
                RemoteConfig.restoreAll();
                print("DONE " + arguments[i]);
                code = runner.dirty ? DIRTY : 0;
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code); // clients leave threads behind
    }

    /** Once for each text. */
    static void note(String text) {
        if (NOTED.add(text)) {
            print("NOTE " + current + " " + line(text));
        }
    }

    private static synchronized void print(String text) {
        OUT.println(text);
        OUT.flush();
    }

    private void run(long methodLimitS, long classLimitS) throws Exception {
        if (type.isAnnotationPresent(Ignore.class)) {
            print("SKIP " + type.getName() + "#* 0 the class has @Ignore");
            return;
        }
        org.junit.runner.Runner tests = type.isAnnotationPresent(RunWith.class)
            ? Request.aClass(type).getRunner() // with the limit of the class only
            : withLimit(methodLimitS);
        addMethods(tests.getDescription());
        Thread watch = new Thread(() -> endAfter(classLimitS), "class limit");
        watch.setDaemon(true);
        watch.start();
        RunNotifier notifier = new RunNotifier();
        notifier.addListener(new Lines());
        current = type.getName() + "#*";
        tests.run(notifier);
        watch.interrupt();
        left.keySet().forEach(each -> print(ofClass + " " + each + " 0 " + reasonOfClass));
    }

    private BlockJUnit4ClassRunner withLimit(long limitS) throws InitializationError {
        return new BlockJUnit4ClassRunner(type) {
            @Override
            protected Statement methodBlock(FrameworkMethod method) {
                Statement test = super.methodBlock(method);
                return FailOnTimeout.builder().withTimeout(limitS, TimeUnit.SECONDS).build(test);
            }
        };
    }

    private void addMethods(Description tests) {
        if (tests.isTest()) {
            left.put(name(tests), "");
        }
        tests.getChildren().forEach(this::addMethods);
    }

    private void endAfter(long limitS) {
        try {
            TimeUnit.SECONDS.sleep(limitS);
        } catch (InterruptedException finished) {
            return;
        }
        synchronized (left) {
            left.keySet().forEach(each -> print("FAIL " + each + " 0 not run: the class took over " + limitS + " s"));
        }
        RemoteConfig.restoreAll();
        print("DONE " + type.getName());
        Runtime.getRuntime().halt(DIRTY);
    }

    private String name(Description test) {
        // A parameterized test has its parameters in its name.
        return type.getName() + "#" + (test.isTest() ? test.getMethodName().replaceAll("\\s+", "_") : "*");
    }

    private static String line(String text) {
        if (text == null) {
            return "";
        }
        int end = text.indexOf(ADVERTISEMENT); // the client's exceptions name a page at their end
        return (end < 0 ? text : text.substring(0, end)).replaceAll("\\s+", " ").trim();
    }

    /** The exception's own words, and the line of the tests that raised it. */
    private String reason(Throwable failure) {
        StringBuilder text = new StringBuilder(failure.getClass().getSimpleName()).append(": ");
        text.append(line(failure.getMessage()));
        for (Throwable each = failure; each != null; each = each.getCause()) {
            for (StackTraceElement frame : each.getStackTrace()) {
                if (frame.getClassName().startsWith("org.apache.rocketmq.test.")) {
                    return text.append(" at ").append(frame.getFileName()).append(":").append(frame.getLineNumber())
                        .toString();
                }
            }
        }
        return text.toString();
    }

    private final class Lines extends RunListener {
        private long began;
        private String outcome;

        @Override
        public void testStarted(Description test) {
            current = name(test);
            began = System.currentTimeMillis();
            outcome = "PASS";
        }

        @Override
        public void testFailure(Failure failure) {
            Throwable cause = failure.getException();
            if (cause instanceof TestTimedOutException) {
                dirty = true;
            }
            failed("FAIL", failure.getDescription(), reason(cause));
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            Throwable cause = failure.getException();
            failed("SKIP", failure.getDescription(), line(((AssumptionViolatedException) cause).getMessage()));
        }

        @Override
        public void testIgnored(Description test) {
            outcome(test, "SKIP", 0, "@Ignore");
        }

        @Override
        public void testFinished(Description test) {
            if (outcome.equals("PASS")) {
                outcome(test, outcome, System.currentTimeMillis() - began, "");
            }
        }

        private void failed(String word, Description test, String reason) {
            if (!test.isTest()) { // @BeforeClass: no method ran; @AfterClass: all did
                ofClass = word;
                reasonOfClass = reason;
                return;
            }
            outcome = word;
            outcome(test, word, System.currentTimeMillis() - began, reason);
        }

        private void outcome(Description test, String word, long milliseconds, String reason) {
            synchronized (left) {
                if (left.remove(name(test)) == null) {
                    return; // @After failed behind a failing test
                }
                print(word + " " + name(test) + " " + milliseconds + (reason.isEmpty() ? "" : " " + reason));
            }
        }
    }
}
