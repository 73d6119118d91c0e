package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gloved.dev/rpc/transport"
)

// A HeldError tells that a gloved holds the state directory. Next is what to do.
type HeldError struct {
	Dir, Next string
	by        string
}

func (e *HeldError) Error() string { return fmt.Sprintf("%s is in use%s", e.Dir, e.by) }

// nothingHeld is what is held of a directory in which no gloved ever ran.
type nothingHeld struct{}

func (nothingHeld) Close() error { return nil }

// HoldState takes the lock that a gloved of these options holds as long as it
// runs, so that none starts meanwhile. Unless create, it makes nothing: where no
// gloved ever took the lock, none runs. A running gloved is a *HeldError.
func (o Options) HoldState(create bool) (io.Closer, error) {
	dir := o.stateDir()
	if _, err := os.Lstat(filepath.Join(dir, transport.LockName)); errors.Is(err, fs.ErrNotExist) && !create {
		return nothingHeld{}, nil
	}
	held, err := transport.OpenRuntimeDir(dir)
	if errors.Is(err, transport.ErrLocked) {
		by, resident := holder(dir)
		next := "wait until its connection ends"
		if resident {
			next = "glove status --runtime-dir " + dir + " shows it; stop it first: its sessions go on"
		}
		return nil, &HeldError{Dir: dir, Next: next, by: by}
	}
	if err != nil {
		return nil, err // a typed nil would be something held
	}
	return held, nil
}

// Resident says who holds the state directory of these options, if it is a resident
// gloved: "a resident gloved (process N, since T)"; else "". It is what the holder's note
// says, for people.
func (o Options) Resident() string {
	by, resident := holder(o.stateDir())
	if !resident {
		return ""
	}
	return strings.TrimPrefix(by, " by ")
}

// RunFiles are the files of the state directory that only a running gloved of
// these options has: the sockets it listens on, and its words about itself.
func (o Options) RunFiles() (sockets, notes []string) {
	dir := o.stateDir()
	return []string{filepath.Join(dir, transport.SocketName)}, []string{filepath.Join(dir, holderName)}
}
