package console

import (
	"os"
	"sync"

	"golang.org/x/term"
)

// A Terminal is the person's: In and Out are its two ends.
type Terminal struct {
	In, Out *os.File
	mu      sync.Mutex
	before  *term.State
}

// Raw passes every key on as it is. It may be called again after Restore.
func (t *Terminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.before != nil {
		return nil
	}
	state, err := term.MakeRaw(int(t.In.Fd()))
	if err != nil {
		return err
	}
	t.before = state
	return nil
}

// Restore puts the terminal back as it was before Raw. It does nothing when it is.
func (t *Terminal) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.before == nil {
		return
	}
	_ = term.Restore(int(t.In.Fd()), t.before) // a terminal that is gone needs no restoring
	t.before = nil
}

// Size is the terminal's, within the protocol's bounds; 24 rows and 80 columns where it
// does not tell.
func (t *Terminal) Size() (rows, columns int) {
	columns, rows, err := term.GetSize(int(t.Out.Fd()))
	if err != nil || rows < 1 || columns < 1 {
		return 24, 80
	}
	return min(rows, 4096), min(columns, 4096)
}
