package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// actVariable makes this test binary, inside the guest, do one thing and end.
const actVariable = "GLOVE_VM_ACT"

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		os.Exit(perform(act))
	}
	os.Exit(m.Run())
}

// perform is the guest's side of TestLane.
func perform(act string) int {
	switch act {
	case "status":
		return 42
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	case "hang":
		fmt.Println("hanging")
		for {
			time.Sleep(time.Hour)
		}
	case "panic":
		return report(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
	case "say":
		fmt.Printf("%q uid %d in %s, %q\n", os.Args[1:], os.Getuid(), os.Getenv("PWD"), os.Getenv("SAID"))
	case "keep":
		return keep()
	default:
		return 99
	}
	return 0
}

// keep writes a file on the disk, durably in the first boot and not in the second, and asks to be
// crashed in both; the third boot tells what is there.
func keep() int {
	const dir = "/var/lib/test/"
	boot := os.Getenv("GLOVE_VM_BOOT")
	if boot == "2" {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			fmt.Println("found", e.Name())
		}
		return report(err)
	}
	f, err := os.OpenFile(dir+"boot-"+boot, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return report(err)
	}
	if boot == "0" {
		if err := f.Sync(); err != nil {
			return report(err)
		}
		d, err := os.Open(dir)
		if err != nil {
			return report(err)
		}
		if err := d.Sync(); err != nil {
			return report(err)
		}
	}
	fmt.Println("pull the plug")
	for {
		time.Sleep(time.Hour)
	}
}

func report(err error) int {
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestLane boots guests that end in every way a guest can, and looks at what the lane says of it
// and leaves behind.
func TestLane(t *testing.T) {
	ownStage(t)
	prepare(t)
	binary := build(t, "integration/vm")
	if binary == "" {
		return
	}
	t.Run("case", func(t *testing.T) {
		for _, c := range []struct {
			act     string
			options []string
			args    []string
			status  int
			out     []string // in standard output
			not     string   // not in it
			err     string   // in standard error
		}{
			{act: "status", status: 42},
			{act: "die", status: 128 + int(syscall.SIGTERM)},
			{act: "hang", options: []string{"--timeout", "25"}, status: 124, out: []string{"hanging"}, err: "timed out"},
			{act: "panic", status: 125, err: "sysrq triggered crash"},
			{
				act: "say", options: []string{"--user", "1000", "--env", "SAID=it's $HOME\n\"", "--chdir", "/usr"},
				args: []string{"", "a b", "*"},
				out:  []string{`["" "a b" "*"] uid 1000 in /usr, "it's $HOME\n\""`},
			},
			{
				act: "keep", options: []string{"--crash-after", "pull the plug", "--crash-after", "pull the plug"},
				out: []string{"found boot-0"}, not: "found boot-1",
			},
		} {
			t.Run(c.act, func(t *testing.T) {
				t.Parallel()
				args := append([]string{"--timeout", "120", "--env", actVariable + "=" + c.act}, c.options...)
				args = append(append(args, "--", binary), c.args...)
				status, out, errs := lane(t, args)
				if status != c.status {
					t.Errorf("status %d, want %d", status, c.status)
				}
				for _, want := range c.out {
					if !strings.Contains(out, want) {
						t.Errorf("standard output lacks %q", want)
					}
				}
				if c.not != "" && strings.Contains(out, c.not) {
					t.Errorf("standard output has %q", c.not)
				}
				if !strings.Contains(errs, c.err) {
					t.Errorf("standard error lacks %q", c.err)
				}
				if t.Failed() {
					t.Logf("standard output:\n%s\nstandard error:\n%s", out, errs)
				}
			})
		}
	})
}

// lane runs the script, in a temporary directory that must be empty afterwards.
func lane(t *testing.T, args []string) (status int, out, errs string) {
	t.Helper()
	tmp := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{"./lane"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("the lane did not run: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}
