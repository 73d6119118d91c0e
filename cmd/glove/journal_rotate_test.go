package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/journal"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/host"
)

// TestNearlyFull fills a store to nine tenths: doctor and status say so, and what
// to do depends on whether gloved rotates by itself.
func TestNearlyFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sessions.jsonl")
	j, err := journal.Open(path, journal.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int) {
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if _, err := j.Append(t.Context(), map[string]any{"event": "x"}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	check := func(at int) host.Check {
		return checkJournal(checkStore, journalsOf(daemon.Options{SessionStore: path, RotateAt: at})[1])
	}
	const bound = session.DefaultMaxRecords * nearlyFull / 100
	add(bound - 1)
	if c := check(0); c.Status != host.Passed {
		t.Errorf("one record before: %+v", c)
	}
	add(1)
	for at, want := range map[int]string{0: "rotate_at", 75: "glove sessions cleanup"} {
		if c := check(at); c.Status != host.Warning || !strings.Contains(c.Message, "90 %") || !strings.Contains(c.Recovery, want) {
			t.Errorf("rotation at %d: %+v", at, c)
		}
	}
	status := journalsOf(daemon.Options{SessionStore: path})[1]
	if err := status.measure(); err != nil || !status.needsOwner() || !strings.Contains(status.String(), fmt.Sprintf("%d of 10000 records, 90 %% full (", bound)) {
		t.Errorf("%v, %s", err, status.String())
	}
	if _, err := j.Rotate(t.Context(), func(*journal.Rotation) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := status.measure(); err != nil || status.needsOwner() || !strings.Contains(status.String(), "0 % full, 1 archive (") {
		t.Errorf("%v, %s", err, status.String())
	}
	if c := check(0); c.Status != host.Passed || !strings.Contains(c.Message, "1 archive") {
		t.Errorf("rotated: %+v", c)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	// What does not prove is never said to.
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]host.Status{
		string(raw) + `{"alg"`: host.Warning,
		strings.Replace(string(raw), `"records":9000`, `"records":9001`, 1): host.Failed,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c := check(0); c.Status != want {
			t.Errorf("%+v, want %v", c, want)
		}
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + ".000001"); err != nil {
		t.Fatal(err)
	}
	if c := check(0); c.Status != host.Warning || !strings.Contains(c.Message, "archive-missing") {
		t.Errorf("without its archive: %+v", c)
	}
}

func TestRotateCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"--acknowledged 1":                  "SEQ:HMAC",
		"--config /c --runtime-dir /r":      "give one of them",
		"--config /nonexistent/config.json": "config_invalid",
		"FILE":                              "unknown command",
	} {
		var out, errs bytes.Buffer
		a := testApp(&out, &errs)
		command := a.journalRotate()
		command.SetArgs(strings.Fields(args))
		command.SilenceErrors, command.SilenceUsage = true, true
		err := command.Execute()
		if err == nil || !strings.Contains(fmt.Sprintf("%v %+v", err, err), want) {
			t.Errorf("rotate %s: %v, want %s", args, err, want)
		}
	}
}
