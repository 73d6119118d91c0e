package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc/wire"
)

func testRunner(errs *bytes.Buffer, terminal bool) *runner {
	a := newApp(&ui.Streams{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: errs, ErrTerm: terminal, Width: 80})
	return &runner{app: a, request: &localrun.Request{}, flags: &runFlags{}, job: &localrun.Job{}, feed: console.NewFeed("s", a.Out)}
}

func TestProgressBar(t *testing.T) {
	var errs bytes.Buffer
	r := testRunner(&errs, true)
	bar := r.progress()
	bar.show(wire.SessionProgressParams{Bytes: 1})
	bar.done()
	if errs.Len() != 0 {
		t.Errorf("nothing is copied, and %q is shown", errs.String())
	}
	bar = &progressBar{streams: r.Streams, total: 200 << 20, since: time.Now()}
	bar.show(wire.SessionProgressParams{Bytes: 100 << 20})
	if errs.Len() != 0 {
		t.Errorf("a copy that has just begun shows %q", errs.String())
	}
	bar.since = time.Now().Add(-time.Minute)
	bar.show(wire.SessionProgressParams{Bytes: 100 << 20, Entries: 3})
	if got := errs.String(); !strings.Contains(got, " 50%  100M of 200M, 3 files") || strings.Count(got, "━") != progressWidth/2 {
		t.Errorf("half-way it shows %q", got)
	}
	bar.show(wire.SessionProgressParams{Bytes: 1 << 40}) // a tree that grew
	bar.done()
	if got := errs.String(); !strings.Contains(got, "100%") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("at the end it shows %q", got)
	}
	n := errs.Len()
	bar.show(wire.SessionProgressParams{Bytes: 1})
	bar.done()
	if errs.Len() != n {
		t.Error("it shows something after its end")
	}
}

func TestRunStatus(t *testing.T) {
	code := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name     string
		resource receipt.Resource
		end      wire.SessionEndedParams
		ended    unix.Signal
		want     int
	}{
		{name: "exit", resource: receipt.Resource{TerminationCause: receipt.CauseExited, ExitCode: code(42)}, want: 42},
		{name: "signal", resource: receipt.Resource{TerminationCause: receipt.CauseSignaled}, end: wire.SessionEndedParams{Signal: 11}, want: 139},
		{name: "unknown kill", resource: receipt.Resource{TerminationCause: receipt.CauseSignaled}, want: 137},
		{name: "we were ended", resource: receipt.Resource{TerminationCause: receipt.CauseSignaled}, end: wire.SessionEndedParams{Signal: 9}, ended: unix.SIGHUP, want: 129},
		{name: "cpu", resource: receipt.Resource{TerminationCause: receipt.CauseCPUTimeLimit}, want: 124},
		{name: "wall", resource: receipt.Resource{TerminationCause: receipt.CauseWallTimeLimit}, want: 124},
		{name: "memory", resource: receipt.Resource{TerminationCause: receipt.CauseMemoryLimit}, want: 137},
		{name: "processes", resource: receipt.Resource{TerminationCause: receipt.CausePIDLimit}, want: 123},
		{name: "disk", resource: receipt.Resource{TerminationCause: receipt.CauseDiskLimit}, want: 123},
		{name: "output", resource: receipt.Resource{TerminationCause: receipt.CauseTerminalOutputLimit}, want: 123},
		{name: "supervisor", resource: receipt.Resource{TerminationCause: receipt.CauseSupervisorError}, want: 125},
	} {
		r := testRunner(&bytes.Buffer{}, false)
		if c.ended != 0 {
			r.ended = c.ended
		}
		if got := r.status(c.end, &c.resource); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReceiptLineFitsAndNamesTheLimit(t *testing.T) {
	var errs bytes.Buffer
	r := testRunner(&errs, false)
	r.receiptLine(&receipt.Envelope{Sequence: 7, ReceiptDigest: strings.Repeat("ab", 32), Resource: &receipt.Resource{
		TerminationCause: receipt.CauseMemoryLimit,
		Observed:         receipt.Observed{CPUTimeMS: 12_345, PeakMemoryBytes: 4 << 30, PeakPIDs: 200, WallTimeMS: 3_599_000, DiskBytes: 1 << 30, TerminalOutputBytes: 1 << 20},
		ConfiguredLimits: receipt.Limits{CPUTimeMS: 600_000, MemoryBytes: 4 << 30, PIDs: 256, WallTimeMS: 3_600_000, DiskBytes: 2 << 30, TerminalOutputBytes: 64 << 20},
	}}, 0)
	want := "glove: met the memory limit · cpu 12s/10m · mem 4G/4G · pids 200/256 · wall 59m59s/1h · disk 1G/2G · out 1M/64M · receipt 7:abababababab\n"
	if errs.String() != want {
		t.Errorf("got  %swant %s", errs.String(), want)
	}
}

func TestRunFailuresGoAside(t *testing.T) {
	var errs bytes.Buffer
	r := testRunner(&errs, false)
	out := r.Out.(*bytes.Buffer)
	err := r.reportRun(errors.New("trouble"), true)
	if code := ui.ExitCode(err); code != 125 || out.Len() != 0 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), `"message":"trouble"`) {
		t.Errorf("exit %d, output %q, errors %q", code, out, errs.String())
	}
	if err := r.reportRun(&ui.Silent{Exit: 7}, true); ui.ExitCode(err) != 7 {
		t.Errorf("the command's own status became %d", ui.ExitCode(err))
	}
	if err := r.reportRun(ui.Usage("wrong"), false); ui.ExitCode(err) != 2 {
		t.Errorf("a usage error exits %d", ui.ExitCode(err))
	}
}

func TestParseKey(t *testing.T) {
	for text, want := range map[string]byte{`ctrl-\`: 0x1c, "ctrl-]": 0x1d, "Ctrl-A": 1, "ctrl-z": 26, "ctrl-_": 0x1f, "none": 0} {
		if got, err := parseKey(text); err != nil || got != want {
			t.Errorf("%s is %#x, %v; want %#x", text, got, err, want)
		}
	}
	for _, text := range []string{"", "F1", "ctrl-", "ctrl-1", "ctrl-ab", "a"} {
		if got, err := parseKey(text); err == nil {
			t.Errorf("%q is %#x", text, got)
		}
	}
}

func TestQuote(t *testing.T) {
	for path, want := range map[string]string{"/a/b-c.d": "/a/b-c.d", "/a b": "'/a b'", "": "''", "/it's": `'/it'\''s'`, "/$(x)": "'/$(x)'"} {
		if got := quote(path); got != want {
			t.Errorf("%s becomes %s, want %s", path, got, want)
		}
	}
}
