package control

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWedgedHolder: a gloved that holds the lock and does not answer is recognised and
// explained, by another gloved and by one that would relay to it; nobody waits for ever.
func TestWedgedHolder(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out the bound of a relay; -short leaves that out")
	}
	s := newState(t)
	dir := s.resident(t)
	note, err := os.ReadFile(filepath.Join(dir, "gloved.holder"))
	if err != nil {
		t.Fatal(err)
	}
	word, _, _ := strings.Cut(string(note), " ")
	pid, err := strconv.Atoi(word)
	if err != nil {
		t.Fatalf("the holder's note is %q", note)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--runtime-dir", dir}, []string{"already_running", "next:"}},
		{[]string{"--stdio", "--runtime-dir", dir}, []string{"relay_failed", "its sessions go on, and the next gloved adopts them"}},
	} {
		var said bytes.Buffer
		command := exec.CommandContext(within(t, time.Minute), gloved(), append(s.full(), c.args...)...)
		command.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocol_versions":[1],"client":{"name":"x","version":"1"}}}` + "\n")
		command.Stderr = &said
		if err := command.Run(); command.ProcessState == nil || command.ProcessState.ExitCode() != 1 {
			t.Errorf("%q: %v, want exit status 1", c.args, err)
		}
		for _, want := range append(c.says, "process "+word) {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%q does not say %q: %s", c.args, want, &said)
			}
		}
	}
}
