package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/require"
	"gloved.dev/rpc/client"
)

// TestDaemonScripts runs testdata/daemon on the real programs with a systemctl of our own,
// which runs the real gloved. Beside testscript's own commands there are
//
//	exits CODE COMMAND...   run a command that must end with exactly that status
//	called WORD...          systemctl was called just so
//	recall                  forget how systemctl was called
//	glove-by-hand           start a gloved that is not the service, and wait until it listens
func TestDaemonScripts(t *testing.T) {
	for _, tool := range []string{"sh", "setsid", "sed", "grep"} {
		require.Tool(t, tool)
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "gloved.dev/cmd/glove", "gloved.dev/cmd/gloved")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	systemctl, err := os.ReadFile("testdata/daemon/systemctl")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/daemon",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               func(env *testscript.Env) error { return setUpDaemon(env, bin, systemctl) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "called": called, "recall": recall, "glove-by-hand": gloveByHand,
		},
	})
}

// setUpDaemon makes a home with a configuration, and puts systemctl before everything else.
func setUpDaemon(env *testscript.Env, bin string, systemctl []byte) error {
	home, fake, tools := filepath.Join(env.WorkDir, "home"), filepath.Join(env.WorkDir, "fake"), filepath.Join(env.WorkDir, "tools")
	config := `{"schema_version": 1, "persistent_service": true, "runtime_directory": "` + home + `/state/run",
		"audit_key": "` + home + `/state/audit.key", "receipt_journal": "` + home + `/state/receipts.jsonl"}`
	err := errors.Join(
		os.MkdirAll(filepath.Join(home, ".config", "glove"), 0o700), os.MkdirAll(filepath.Join(home, "state"), 0o700),
		os.Chmod(home, 0o755), os.Mkdir(fake, 0o700), os.Mkdir(tools, 0o700),
		os.WriteFile(filepath.Join(home, ".config", "glove", "config.json"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(home, "state", "audit.key"), []byte(strings.Repeat("ab", 32)+"\n"), 0o600),
		os.WriteFile(filepath.Join(tools, "systemctl"), systemctl, 0o755),
		os.WriteFile(filepath.Join(fake, "version"), []byte("257.5\n"), 0o600),
	)
	env.Setenv("HOME", home)
	env.Setenv("FAKE", fake)
	env.Setenv("BIN", bin)
	env.Setenv("UNIT", filepath.Join(home, ".config", "systemd", "user", "gloved.service"))
	env.Setenv("TOOLS", tools+":"+bin+":"+os.Getenv("PATH"))
	env.Setenv("PATH", env.Getenv("TOOLS"))
	env.Defer(func() { endService(filepath.Join(fake, "pid"), home) })
	return err
}

// endService ends a gloved that a failed script left running, if it is one.
func endService(pidFile, home string) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !bytes.Contains(line, []byte(home)) {
		return
	}
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // gone is as good
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit status %d, want %s", code, args[0])
	}
}

func called(ts *testscript.TestScript, neg bool, args []string) {
	lines := strings.Split(ts.ReadFile(filepath.Join(ts.Getenv("FAKE"), "argv")), "\n")
	if slices.Contains(lines, strings.Join(args, " ")) == neg {
		ts.Fatalf("systemctl was called:\n%s", strings.Join(lines, "\n"))
	}
}

func recall(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(os.Remove(filepath.Join(ts.Getenv("FAKE"), "argv")))
}

func gloveByHand(ts *testscript.TestScript, _ bool, _ []string) {
	home := ts.Getenv("HOME")
	cmd := exec.Command(filepath.Join(ts.Getenv("BIN"), "gloved"), "--config", filepath.Join(home, ".config", "glove", "config.json"))
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Kill() // it is ours, and not waited for yet
		_ = cmd.Wait()         // killed is how it ends
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		c, err := client.DialRuntimeDir(context.Background(), filepath.Join(home, "state", "run"), client.Options{})
		if err == nil {
			ts.Check(c.Close())
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("gloved does not answer: %v", err)
		}
	}
}

// What a version begins with.
func TestLeadingNumber(t *testing.T) {
	for text, want := range map[string]int{"252.39-1~deb12u1": 252, "257": 257, "v257": 0, "": 0, "99999999999999999999": 0, "-1": 0} {
		if got := leadingNumber(text); got != want {
			t.Errorf("leadingNumber(%q) = %d, want %d", text, got, want)
		}
	}
}

// A systemctl that floods us is not kept.
func TestCapped(t *testing.T) {
	var c capped
	for range 3 {
		if n, err := c.Write(bytes.Repeat([]byte("x"), maxManagerOutput/2+1)); n != maxManagerOutput/2+1 || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if len(c.String()) != maxManagerOutput {
		t.Errorf("kept %d bytes", len(c.String()))
	}
}

// root and others have different defaults, and say so again only where they must.
func TestServiceFlags(t *testing.T) {
	var out, errs bytes.Buffer
	a := testApp(&out, &errs)
	a.getenv = func(name string) string { return map[string]string{"HOME": "/home/ada"}[name] }
	user, err := a.service(daemonFlags{user: true})
	if err != nil || user.path != "/home/ada/.config/systemd/user/gloved.service" {
		t.Errorf("user: %+v, %v", user, err)
	}
	system, err := a.service(daemonFlags{system: true})
	if err != nil || system.path != "/etc/systemd/system/gloved.service" {
		t.Errorf("system: %+v, %v", system, err)
	}
	own, err := a.service(daemonFlags{})
	if err != nil || own.user == (os.Geteuid() == 0) || own.flag() != "" {
		t.Errorf("by default: %+v, %q, %v", own, own.flag(), err)
	}
	if both := user.flag() + system.flag(); both != " --user" && both != " --system" {
		t.Errorf("flags: %q", both)
	}
	_, err = a.service(daemonFlags{user: true, system: true})
	var wrong *ui.Error
	if !errors.As(err, &wrong) || wrong.Exit != ui.ExitUsage {
		t.Errorf("both: %v", err)
	}
}
