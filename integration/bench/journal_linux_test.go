package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/journal"
)

// BenchmarkJournal shows what one durable record costs beside the bare write
// and fdatasync it consists of. There is no goal: the disk decides.
func BenchmarkJournal(b *testing.B) {
	dir := filepath.Join(resolved(b, b.TempDir()), "state")
	must(b, os.Mkdir(dir, 0o700))
	j, err := journal.Open(filepath.Join(dir, "journal.jsonl"), journal.Options{}, func(journal.Entry) error { return nil })
	must(b, err)
	defer j.Close()
	f, err := os.OpenFile(filepath.Join(dir, "bare"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(b, err)
	defer f.Close()
	const size = 400
	body := map[string]string{"kind": "note", "text": string(make0(size))}
	line := append(make0(size+200), '\n')
	for b.Loop() {
		report(b, "one durable record", compete(b, 60,
			contestant{"journal append", func() (time.Duration, error) {
				from := time.Now()
				_, err := j.Append(context.Background(), body)
				return time.Since(from), err
			}},
			contestant{"write and fdatasync", func() (time.Duration, error) {
				from := time.Now()
				if _, err := f.Write(line); err != nil {
					return 0, err
				}
				err := unix.Fdatasync(int(f.Fd()))
				return time.Since(from), err
			}},
		), microseconds, "µs")
	}
}

// make0 returns n printable bytes.
func make0(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = 'x'
	}
	return p
}
