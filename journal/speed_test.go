package journal_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gloved.dev/journal"
)

// stream is a log of at least bytesWanted bytes, with records such as a session
// store holds.
func stream(t testing.TB, bytesWanted int) []byte {
	t.Helper()
	path := filepath.Join(dir(t), "log.jsonl")
	j, err := journal.Open(path, journal.Options{FS: noSync{journal.OS()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	text := strings.Repeat("The quick brown fox. ", 40)
	for i := 0; int(j.Stats().Bytes) < bytesWanted; i++ {
		b := map[string]any{
			"operation": "mark_running", "session_id": fmt.Sprint("session-", i), "request_digest": strings.Repeat("a", 64),
			"plan": map[string]any{"limits": map[string]int{"cpu_time_ms": 60000, "pids": 128}, "grants": []string{"workspace", "cache"}, "text": text},
		}
		if _, err := j.Append(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// noSync makes building a long log quick; nothing here looks at durability.
type noSync struct{ journal.FS }

type noSyncFile struct{ journal.File }

func (noSyncFile) Sync() error { return nil }

func (n noSync) Open(path string) (journal.File, error) {
	f, err := n.FS.Open(path)
	return noSyncFile{f}, err
}

func (n noSync) Create(path string) (journal.File, error) {
	f, err := n.FS.Create(path)
	return noSyncFile{f}, err
}

func BenchmarkRecovery(b *testing.B) {
	data := stream(b, 16<<20)
	b.SetBytes(int64(len(data)))
	var hashing time.Duration
	b.ResetTimer()
	for b.Loop() {
		if v := journal.Verify(bytes.NewReader(data), journal.VerifyOptions{}); v.Status != journal.StatusClean {
			b.Fatal(v)
		}
	}
	recovery := b.Elapsed() / time.Duration(b.N)
	began := time.Now()
	for range 4 {
		sha256.Sum256(data)
	}
	hashing = time.Since(began) / 4
	b.ReportMetric(float64(recovery)/float64(hashing), "x-sha256")
}

func BenchmarkAppend(b *testing.B) {
	j, err := journal.Open(filepath.Join(dir(b), "log.jsonl"), journal.Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := j.Append(context.Background(), body{"x", 1}); err != nil {
				b.Error(err)
			}
		}
	})
	s := j.Stats()
	b.ReportMetric(float64(s.Appends)/float64(max(s.Syncs, 1)), "appends/sync")
}

// Recovery needs the memory of one line, however long the log is.
func TestRecoveryMemory(t *testing.T) {
	data := stream(t, 24<<20)
	var early, late uint64
	seen := 0
	v := journal.Verify(io.MultiReader(bytes.NewReader(data)), journal.VerifyOptions{Observe: func(e journal.Entry) *journal.Anomaly {
		seen++
		switch e.Seq {
		case 100:
			early = heap()
		case 15000:
			late = heap()
		}
		return nil
	}})
	if v.Status != journal.StatusClean || late == 0 {
		t.Fatalf("%+v, %d records", v, seen)
	}
	if late > early+(1<<20) {
		t.Errorf("the heap grew from %d to %d bytes", early, late)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
