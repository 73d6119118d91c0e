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

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/journal"
)

// What makes a test binary a child: the journal's path, and where it kills itself.
const (
	childEnv = "GLOVE_JOURNAL_TEST_CHILD"
	pointEnv = "GLOVE_JOURNAL_TEST_POINT"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if point := os.Getenv(pointEnv); point != "" {
			rotatingChild(path, crashpoint.Point(point))
		}
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

// rotatingChild appends while it rotates, and dies at a point of the third
// rotation.
func rotatingChild(path string, point crashpoint.Point) {
	passed := 0
	crashpoint.Hook = func(_ string, p crashpoint.Point) error {
		if p == point {
			if passed++; passed == 3 {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}
		return nil
	}
	j, err := journal.Open(path, journal.Options{}, nil)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for g := range 2 {
		go func() {
			for n := 0; ; n++ {
				text := fmt.Sprintf("%d-%d", g, n)
				if _, err := j.Append(context.Background(), body{text, 1}); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				fmt.Println(text)
			}
		}()
	}
	for {
		_, err := j.Rotate(context.Background(), keepNothing)
		if err != nil && !errors.Is(err, journal.ErrEmpty) {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
}

// A process is killed with SIGKILL at each point of a rotation, on the real file
// system, while appends go on. What it acknowledged is in the journal or in an
// archive, once, and there is one live file.
func TestKilledInRotation(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	for _, point := range crashpoint.Rotate {
		t.Run(string(point), func(t *testing.T) {
			path := filepath.Join(dir(t), "log.jsonl")
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), childEnv+"="+path, pointEnv+"="+string(point))
			out, err := cmd.Output()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Exited() || strings.Contains(string(out), "error") {
				t.Fatalf("the child was not killed: %v %s", err, out)
			}
			_, err = journal.Repair(nil, path, true)
			must(t, err)
			j := open(t, path, journal.Options{})
			archives := uint64(0)
			if a := j.Archive(); a != nil {
				archives = a.Number()
			}
			j.Close()
			v, err := journal.VerifyFile(path, journal.VerifyOptions{})
			if err != nil || v.Status != journal.StatusClean || uint64(len(v.Archives)) != archives {
				t.Fatalf("%+v, %v", v, err)
			}
			seen := map[string]int{}
			for _, name := range append([]string{filepath.Base(path)}, names(v.Archives)...) {
				must(t, journal.Walk(filepath.Join(filepath.Dir(path), name), func(e journal.Entry) error {
					var b body
					if a, _ := journal.Archived(e); a == nil {
						must(t, e.Decode(&b))
						seen[b.Event]++
					}
					return nil
				}))
			}
			acked := strings.Fields(string(out))
			for _, text := range acked {
				if seen[text] != 1 {
					t.Errorf("%s is there %d times", text, seen[text])
				}
			}
			files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
			must(t, err)
			hidden, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
			must(t, err)
			for _, f := range files {
				if strings.Contains(f, ".torn-") {
					archives++
				}
			}
			if uint64(len(files)) != archives+1 || len(hidden) != 0 {
				t.Errorf("files %v, hidden %v, and should be one live and %d others", files, hidden, archives)
			}
			t.Logf("%d acknowledged, %d archives", len(acked), len(v.Archives))
		})
	}
}
