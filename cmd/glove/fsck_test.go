package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/transport"
)

// fsckState makes the state of a gloved that never ran a session, and returns its
// configuration and its runtime directory.
func fsckState(t *testing.T) (config, run string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fsck-") // a socket's path must be short
	fsckMust(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		fsckMust(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	run = filepath.Join(dir, "run")
	document, err := json.Marshal(map[string]any{"schema_version": 1, "persistent_service": false, "runtime_directory": run,
		"audit_key": write("audit.key", strings.Repeat("6", 64)+"\n"), "receipt_journal": filepath.Join(dir, "receipts.jsonl"),
		"session_policy": filepath.Join(dir, "policy.json"), "session_store": filepath.Join(dir, "sessions.jsonl"),
		"materialization_root": filepath.Join(dir, "root")})
	fsckMust(t, err)
	return write("config.json", string(document)), run
}

func runFsck(t *testing.T, want int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := testApp(&o, &e)
	a.getenv = func(string) string { return "" }
	if code := ui.Run(a.root(), a.Streams, append([]string{"fsck"}, args...)); code != want {
		t.Errorf("fsck %q exits %d, want %d: %s%s", args, code, want, o.String(), e.String())
	}
	return o.String(), e.String()
}

// TestFsckSaysNothingOfAHealthyHost, nor makes anything there.
func TestFsckSaysNothingOfAHealthyHost(t *testing.T) {
	config, run := fsckState(t)
	if out, errs := runFsck(t, 0, "--config", config); out+errs != "" {
		t.Errorf("fsck said %q %q", out, errs)
	}
	if _, err := os.Lstat(run); err == nil {
		t.Error("looking made the runtime directory")
	}
	if out, errs := runFsck(t, 0, "--config", config, "--yes"); out+errs != "" {
		t.Errorf("fsck --yes said %q %q", out, errs)
	}
	out, _ := runFsck(t, 0, "--config", config, "--json")
	var report fsckReport
	fsckMust(t, json.Unmarshal([]byte(out), &report))
	if !report.Healthy || report.ConfigPath != config || report.Repaired == nil || report.Left == nil {
		t.Errorf("the report is %s", out)
	}
}

// TestFsckRepairs what a killed gloved left, and what it must not touch it leaves.
func TestFsckRepairs(t *testing.T) {
	config, run := fsckState(t)
	held, err := transport.OpenRuntimeDir(run)
	fsckMust(t, err)
	socket := filepath.Join(run, transport.SocketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	fsckMust(t, err)
	l.SetUnlinkOnClose(false)
	fsckMust(t, os.Chmod(socket, 0o600))

	out, errs := runFsck(t, exitUnchecked, "--config", config)
	if out != "" || !strings.Contains(errs, "already_running") || !strings.Contains(errs, "next:") {
		t.Errorf("beside a gloved fsck said %q %q", out, errs)
	}
	runFsck(t, exitUnchecked, "--config", config, "--yes")
	fsckMust(t, held.Close())

	out, _ = runFsck(t, 1, "--config", config)
	if !strings.Contains(out, "socket_foreign") {
		t.Errorf("of a socket that is served fsck said %q", out)
	}
	fsckMust(t, l.Close())
	out, _ = runFsck(t, 1, "--config", config)
	if !strings.Contains(out, "socket_orphan") || !strings.Contains(out, "repair: remove it") || !strings.Contains(out, "glove fsck --yes") {
		t.Errorf("fsck said %q", out)
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("looking removed the socket: %v", err)
	}
	out, _ = runFsck(t, 0, "--config", config, "--yes")
	if !strings.Contains(out, "done: removed") || !strings.Contains(out, "1 repaired, 0 left") {
		t.Errorf("fsck --yes said %q", out)
	}
	if out, errs := runFsck(t, 0, "--config", config); out+errs != "" {
		t.Errorf("after its repair fsck said %q %q", out, errs)
	}
}

func TestFsckRefusesWhatItCannotRead(t *testing.T) {
	_, errs := runFsck(t, exitUnchecked)
	if !strings.Contains(errs, "no_configuration") {
		t.Errorf("without a configuration fsck said %q", errs)
	}
	_, errs = runFsck(t, exitUnchecked, "--config", filepath.Join(t.TempDir(), "none.json"))
	if !strings.Contains(errs, "config_unreadable") {
		t.Errorf("without its file fsck said %q", errs)
	}
	runFsck(t, 2, "--no")
	runFsck(t, 2, "more")
	config, _ := fsckState(t)
	fsckMust(t, os.Remove(filepath.Join(filepath.Dir(config), "audit.key")))
	fsckMust(t, os.WriteFile(filepath.Join(filepath.Dir(config), "receipts.jsonl"), nil, 0o600))
	_, errs = runFsck(t, exitUnchecked, "--config", config)
	if !strings.Contains(errs, "not_compared") {
		t.Errorf("without its key fsck said %q", errs)
	}
}

func fsckMust(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
