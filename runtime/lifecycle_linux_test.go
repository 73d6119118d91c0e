package runtime

import (
	"testing"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

func TestRunEndsInAReceipt(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "echo hello; id -u; exit 7")
	w.trust()
	out, rec := w.run()
	if out != "hello\r\n1000\r\n" {
		t.Errorf("output = %q", out)
	}
	if rec.State != session.Exited || rec.Terminal.TerminationCause != receipt.CauseExited || *rec.Terminal.ExitCode != 7 {
		t.Errorf("record = %+v", rec)
	}
	env := w.envelope(rec)
	if env.Confinement == nil || env.Confinement.ProbeResult != receipt.ProbesRefused || !env.Confinement.Transcript.Complete {
		t.Errorf("confinement = %+v", env.Confinement)
	}
}
