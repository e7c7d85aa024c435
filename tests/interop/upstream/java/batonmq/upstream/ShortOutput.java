package batonmq.upstream;

import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;

/** Passes on the first megabytes of a class: a test that prints a trace in a loop fills gigabytes. */
final class ShortOutput extends FilterOutputStream {
    private static final int LIMIT = 4 << 20;
    private int left = LIMIT;

    ShortOutput(OutputStream to) {
        super(to);
    }

    synchronized void beginClass() {
        left = LIMIT;
    }

    @Override
    public synchronized void write(int each) throws IOException {
        if (left > 0) {
            left--;
            out.write(each);
        }
    }

    @Override
    public synchronized void write(byte[] bytes, int offset, int length) throws IOException {
        int kept = Math.min(length, left);
        left -= kept;
        out.write(bytes, offset, kept);
    }
}
