package runtime

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

func TestForeign(t *testing.T) {
	ours := fmt.Sprint(monitor.ProtocolVersion)
	for _, state := range []session.State{session.Created, session.Preparing, session.Starting, session.Running, session.Stopping, session.Exited, session.Failed} {
		held := state == session.Starting || state == session.Running || state == session.Stopping
		if err := Foreign(session.Record{State: state, Monitor: session.Monitor{locatorVersion: ours}}); err != nil {
			t.Errorf("%s and of our version: %v", state, err)
		}
		for _, theirs := range []string{"", "0", ours + "0", "01", strings.Repeat("9", 100)} {
			err := Foreign(session.Record{State: state, Monitor: session.Monitor{locatorVersion: theirs}})
			if got := errors.Is(err, &Error{Code: CodeVersion}); got != held {
				t.Errorf("%s and of version %.10q: %v", state, theirs, err)
			}
			if held && (!strings.Contains(err.Error(), fmt.Sprintf("version %.20q", theirs)) || !strings.Contains(err.Error(), "that started it") || len(err.Error()) > 400) {
				t.Errorf("the refusal is %q", err)
			}
		}
	}
}
