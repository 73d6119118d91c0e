//go:build !linux

package sandbox

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// ErrUnsupported is returned by everything on systems other than Linux: there is no
// weaker room to fall back to.
var ErrUnsupported = errors.New("sandbox: managed sessions need Linux")

// Session cannot exist here; Start always fails.
type Session struct{}

// Main returns at once.
func Main() {}

// SealedExe returns ErrUnsupported.
func SealedExe() (*os.File, error) { return nil, ErrUnsupported }

// OpenTree returns ErrUnsupported.
func OpenTree(f *os.File, readOnly bool) (*os.File, error) { return nil, ErrUnsupported }

// Start returns a *StepError that wraps nothing, after judging the Config.
func Start(ctx context.Context, c Config, h Hooks) (*Session, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return nil, &StepError{Step: stepSpawn, Errno: syscall.ENOSYS, Detail: ErrUnsupported.Error()}
}

// Room cannot exist here; Prepare always fails.
type Room struct{}

// Prepare returns a *StepError.
func Prepare(Tenant) (*Room, error) {
	return nil, &StepError{Step: stepSpawn, Errno: syscall.ENOSYS, Detail: ErrUnsupported.Error()}
}

// Launch returns ErrUnsupported.
func (r *Room) Launch() (Process, error) { return Process{}, ErrUnsupported }

// Gone returns true.
func (r *Room) Gone() bool { return true }

// Furnish returns ErrUnsupported.
func (r *Room) Furnish(context.Context, Config) error { return ErrUnsupported }

// Start is the function Start.
func (r *Room) Start(ctx context.Context, c Config, h Hooks) (*Session, error) {
	return Start(ctx, c, h)
}

// Close does nothing.
func (r *Room) Close() error { return nil }

// Terminal returns nil.
func (s *Session) Terminal() *os.File { return nil }

// Report returns the zero Report.
func (s *Session) Report() Report { return Report{} }

// Launch returns the zero Process.
func (s *Session) Launch() Process { return Process{} }

// Init returns the zero Process.
func (s *Session) Init() Process { return Process{} }

// Release returns ErrUnsupported.
func (s *Session) Release() error { return ErrUnsupported }

// Wait returns ErrUnsupported.
func (s *Session) Wait(ctx context.Context) (Exit, error) { return Exit{}, ErrUnsupported }

// Signal returns ErrUnsupported.
func (s *Session) Signal(sig syscall.Signal) error { return ErrUnsupported }

// Kill returns ErrUnsupported.
func (s *Session) Kill() error { return ErrUnsupported }

// Close does nothing.
func (s *Session) Close() error { return nil }
