package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gloved.dev/journal"
)

const childEnv = "GLOVE_JOURNAL_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
	}
	os.Exit(m.Run())
}

// child appends for ever from several goroutines, and tells on standard output
// what was acknowledged.
func child(path string) {
	j, err := journal.Open(path, journal.Options{}, nil)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	for g := range 4 {
		go func() {
			for n := 0; ; n++ {
				e, err := j.Append(context.Background(), body{strings.Repeat("x", 1+(n*g*997)%9000), n})
				if err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(e.Seq, e.Hash)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// kills is how often the writer is killed.
const kills = 500

// A writer is killed with SIGKILL at a random moment, again and again, on the
// real file system. Nothing it acknowledged is lost.
func TestKilledWriter(t *testing.T) {
	n := kills
	if testing.Short() {
		n = 20
	}
	d := dir(t)
	began := time.Now()
	acks, torn := 0, 0
	path := ""
	for i := range n {
		if i%25 == 0 { // keep the proof of each round short
			path = filepath.Join(d, fmt.Sprintf("log-%d.jsonl", i))
		}
		acked := runAndKill(t, path, rand.IntN(40))
		acks += len(acked)
		have := map[string]bool{}
		err := journal.Walk(path, func(e journal.Entry) error {
			have[fmt.Sprint(e.Seq, " ", e.Hash)] = true
			return nil
		})
		if errors.Is(err, journal.ErrTornTail) {
			torn++
			_, err = journal.Repair(nil, path, true)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("kill %d: %v", i, err)
		}
		for _, a := range acked {
			if !have[a] {
				t.Fatalf("kill %d: lost acknowledged record %s", i, a)
			}
		}
	}
	if acks == 0 {
		t.Error("no writer acknowledged anything")
	}
	t.Logf("%d kills, %d acknowledged records, %d torn tails, %v", n, acks, torn, time.Since(began).Round(time.Millisecond))
}

// runAndKill starts a writer, kills it after some acknowledgements, and returns
// every one it gave.
func runAndKill(t *testing.T, path string, after int) (acked []string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for killed := false; ; {
		if len(acked) >= after && !killed {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			killed = true
		}
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, "error") {
			cmd.Process.Kill()
			t.Fatal(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		acked = append(acked, strings.TrimSuffix(line, "\n"))
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the writer ended by itself")
	}
	return acked
}
