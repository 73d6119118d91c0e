package broker

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"gloved.dev/internal/require"
)

// TestReq081SyncsBeforeMoves reads the order of an apply from the kernel's side: staged files, their
// directory, the journal and its directory are synced, in this order, before the first rename.
func TestReq081SyncsBeforeMoves(t *testing.T) {
	require.Linux(t)
	strace := require.Tool(t, "strace")
	root := t.TempDir()
	crashSite(t, root)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-s", "256", "-o", trace, "-e", "trace=fsync,renameat2", exe)
	cmd.Env = append(os.Environ(), crashRoot+"="+root, crashKind+"=every", crashStep+"=", crashNth+"=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "ptrace") {
			require.Skip(t, "this process may not trace its children; allow ptrace")
		}
		t.Fatalf("%v %s", err, out)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	// Each call as the last part of the path it is about; a resumed call has no path of its own.
	call := regexp.MustCompile(`(fsync|renameat2)\(\d+<([^>]*)>`)
	var got []string
	for line := range strings.Lines(string(raw)) {
		m := call.FindStringSubmatch(line)
		if m == nil || !strings.HasPrefix(m[2], filepath.Join(root, "ws")) {
			continue
		}
		word := filepath.Base(m[2])
		if m[1] == "renameat2" {
			word = "move"
		}
		got = append(got, word)
		if word == "move" {
			break
		}
	}
	want := "ws " + // the lock
		"ws " + // the staging directory's name
		"new-0 new-1 pre-1 pre-2 pre-3 " + TransactionDir + " journal.json " + TransactionDir + " ws move"
	order := strings.Join(got, " ")
	order = strings.Replace(order, LockName+" ", "", 1)
	if order != want {
		t.Fatalf("on %s the order is\n%s, want\n%s", runtime.GOARCH, order, want)
	}
}
