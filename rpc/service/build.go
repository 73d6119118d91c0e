package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"gloved.dev/internal/clock"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/rpc"
	"gloved.dev/runtime/monitor"
)

// Config says what a gloved is built with. Paths are absolute; an empty one leaves its
// component out. AuditKey and Journal are always needed.
type Config struct {
	AuditKey string // receipt audit key file
	Journal  string // receipt journal

	SessionPolicy       string
	SessionStore        string
	MaterializationRoot string
	LibraryBundleRoot   string
	PathExposurePolicy  string
	PathExposureJournal string
	ApplyTrustPolicy    string
	ApplyJournal        string
	RotateAt            int              // percent of a journal's bound at which it is rotated; 0 is never
	SessionUIDs         monitor.UIDRange // host users of a root gloved's sessions; zero is the built-in range
	RuntimeDir          string           // where per-process files go; "" without a resident socket
	RemoteBackend       bool             // the configuration has a remote_backend
	AppleContainer      bool             // the configuration has an apple_container

	// Hold is called once the owner's documents are read and before anything durable is
	// opened: it takes the instance's lock. What it returns is closed last. nil holds nothing.
	Hold func() (io.Closer, error)

	Clock  clock.Clock  // nil is the system's
	Logger *slog.Logger // nil discards
}

// Assembly is every component of one gloved.
type Assembly struct {
	Components []rpc.Component
	Registry   *rpc.Registry

	closers []io.Closer
}

// Close closes what was built, in reverse. It may be called more than once.
func (a *Assembly) Close() error {
	var err error
	for i := len(a.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, a.closers[i].Close())
	}
	a.closers = nil
	return err
}

// UnavailableError refuses an option whose component does not exist in this build. It is
// a fault of the configuration, not of the machine.
type UnavailableError struct {
	Option string // as the command line names it
	Why    string
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s cannot be used: %s", e.Option, e.Why)
}

// BuildError names the option whose component could not be constructed. It is for the
// operator: Err may hold host paths.
type BuildError struct {
	Option string
	Err    error
}

func (e *BuildError) Error() string { return e.Option + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *BuildError) Unwrap() error { return e.Err }

// builder holds what later steps need of earlier ones.
type builder struct {
	Config
	assembly *Assembly

	policy    *policy.Policy
	exposures policy.Exposures // nil: no exposure registry exists in this build
	store     *session.Store
	producer  *receipt.Producer
	receipts  *Receipts // its reconciled hook is the runtime's to set
	sessions  *Sessions // nil without a store
}

// add makes a component part of the assembly.
func (b *builder) add(component rpc.Component) {
	b.assembly.Components = append(b.assembly.Components, component)
}

// own has the assembly close c.
func (b *builder) own(c io.Closer) {
	b.assembly.closers = append(b.assembly.closers, c)
}

// Build constructs the components that config asks for, in this order: the owner's
// documents (policy), the instance's lock, the receipt producer, the session store, the
// runtime, what rotates the journals. The producer comes before what ends in receipts and so outlives it. The first
// that cannot be constructed ends it: what was built is closed again, and the error is
// an *UnavailableError, a *BuildError, or Hold's own.
func Build(config Config) (*Assembly, error) {
	b := &builder{Config: config, assembly: &Assembly{}}
	b.defaults()
	for _, step := range []func() error{
		b.refuseUnavailable,
		b.buildPolicy,
		b.hold,
		b.buildReceipts,
		b.buildSessions,
		b.buildRuntime,
		b.buildJournals,
		b.register,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, b.assembly.Close())
		}
	}
	return b.assembly, nil
}

func (b *builder) defaults() {
	if b.Clock == nil {
		b.Clock = clock.System()
	}
	if b.Logger == nil {
		b.Logger = slog.New(slog.DiscardHandler)
	}
}

// refuseUnavailable refuses options that nothing here would serve, rather than starting
// without what the operator asked for.
func (b *builder) refuseUnavailable() error {
	for _, option := range []struct {
		given bool
		name  string
	}{
		{b.PathExposurePolicy != "", "--path-exposure-policy"},
		{b.PathExposureJournal != "", "--path-exposure-journal"},
		{b.LibraryBundleRoot != "", "--library-bundle-root"},
		{b.ApplyTrustPolicy != "", "--apply-trust-policy"},
		{b.ApplyJournal != "", "--apply-journal"},
		{b.RemoteBackend, "remote_backend"},
		{b.AppleContainer, "apple_container"},
	} {
		if option.given {
			return &UnavailableError{Option: option.name, Why: "this gloved has no component for it"}
		}
	}
	return nil
}

func (b *builder) buildPolicy() error {
	if b.SessionPolicy == "" {
		return nil
	}
	loaded, err := policy.Load(b.SessionPolicy)
	if err != nil {
		return &BuildError{Option: "--session-policy", Err: err}
	}
	b.policy = loaded
	b.add(NewPolicy(loaded, b.exposures, b.Clock))
	return nil
}

func (b *builder) hold() error {
	if b.Hold == nil {
		return nil
	}
	held, err := b.Hold()
	if err != nil {
		return err
	}
	b.own(held)
	return nil
}

func (b *builder) buildSessions() error {
	if b.SessionStore == "" {
		return nil
	}
	if b.policy == nil {
		return &BuildError{Option: "--session-store", Err: errors.New("it needs --session-policy")}
	}
	if err := b.openStore(); err != nil {
		return err
	}
	b.sessions = NewSessions(b.store, b.policy, b.exposures)
	b.add(b.sessions)
	return nil
}

func (b *builder) openStore() error {
	store, err := session.Open(b.SessionStore, session.Options{Clock: b.Clock})
	if err != nil {
		return &BuildError{Option: "--session-store", Err: err}
	}
	b.own(store)
	b.store = store
	return nil
}

func (b *builder) register() error {
	registry, err := rpc.NewRegistry(b.assembly.Components...)
	b.assembly.Registry = registry
	return err
}
