package monitor

import (
	"context"

	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/sandbox"
	"gloved.dev/runtime/sandbox/seccomp"
)

// A ground is what a monitor is told before it knows its session: enough to make ahead
// what every session needs, which is the greater part of starting one. It comes first
// over the inherited socket.
type ground struct {
	ProtocolVersion int      `json:"protocol_version"`
	UIDRange        UIDRange `json:"uid_range"`
	Unprivileged    bool     `json:"unprivileged"`
	// Dir is an owner directory that becomes the session's; it may be renamed once the
	// ground is laid.
	Dir string `json:"dir"`
	// Cgroup is the name of the control group to make.
	Cgroup string `json:"cgroup"`
}

// fits reports whether the ground is one for s.
func (g *ground) fits(s *Spec) bool {
	return g.ProtocolVersion == s.ProtocolVersion && g.UIDRange == s.UIDRange && g.Unprivileged == s.Unprivileged
}

// A base is a session's host user, its control group, and its processes until they are
// put to use.
type base struct {
	ground ground

	done   chan struct{} // closed when the members below are set
	claim  *uidClaim     // nil in an unprivileged daemon, whose sessions map to its user
	tenant sandbox.Tenant
	room   *sandbox.Room
	// err says why there is no user for the session.
	err error

	enclosed  chan struct{} // closed when the members below are set
	group     *cgroup.Group // nil when it could not be made
	mechanism string
	handed    bool // the group is the session's to destroy

	placed    chan struct{} // closed when launch is in the group, or will not be by us
	placedPID int           // 0: none

	identified chan struct{} // closed when the members below are set
	id         cgroup.ProcessIdentity
	idErr      error
}

// lay begins to make a base. What fails is tried again when it is needed, and said then:
// a ground that nobody uses has no errors.
func lay(g ground) *base {
	b := &base{ground: g, tenant: sandbox.Tenant{DropGroups: !g.Unprivileged},
		done: make(chan struct{}), enclosed: make(chan struct{}), placed: make(chan struct{})}
	go func() {
		defer close(b.enclosed)
		b.group, b.mechanism, _ = newGroup(g.Cgroup)
	}()
	go seccomp.Compile(seccomp.Policy{}) // the profile has its digest
	go func() {
		defer close(b.placed)
		room := b.inhabit()
		close(b.done)
		b.place(room)
	}()
	return b
}

// inhabit claims a user and makes the room for it.
func (b *base) inhabit() *sandbox.Room {
	if !b.ground.Unprivileged {
		if b.claim, b.err = claimUID(b.ground.UIDRange); b.err != nil {
			return nil
		}
		b.tenant.HostUID, b.tenant.HostGID = b.claim.uid, b.claim.uid
	}
	b.room, _ = sandbox.Prepare(b.tenant)
	return b.room
}

// groundLimits hold a control group in which nothing of a session runs yet. The session's
// own are lower in memory, so that they can be set in the order that cgroup v1 wants.
var groundLimits = cgroup.Limits{MemoryBytes: 1 << 50, PIDs: 64}

func newGroup(name string) (*cgroup.Group, string, error) {
	host, err := cgroup.Detect()
	if err != nil {
		return nil, "", err
	}
	g, err := host.Create(name, groundLimits)
	if err != nil {
		_ = host.Close() // the group's error says more
		return nil, "", err
	}
	return g, host.Mechanism(), host.Close()
}

// place moves launch into the control group. For that the kernel waits until every
// processor has passed a quiet state, for each of a v1 host's hierarchies anew: it is
// what takes longest of all, and so is done first.
func (b *base) place(room *sandbox.Room) {
	<-b.enclosed
	if room == nil || b.group == nil {
		return
	}
	p, err := room.Launch()
	if err != nil || b.group.Add(p.PID) != nil {
		return // finishPlacing, or the start, will say so
	}
	b.placedPID = p.PID
}

// user waits for the session's user. Where there was none to be had, there may be now.
func (b *base) user() (sandbox.Tenant, error) {
	<-b.done
	if b.err != nil {
		<-b.placed
		b.inhabit()
	}
	return b.tenant, b.err
}

// enclosure hands over the control group, with limits in force.
func (b *base) enclosure(limits cgroup.Limits) (_ *cgroup.Group, mechanism string, err error) {
	<-b.enclosed
	if b.group == nil {
		if b.group, b.mechanism, err = newGroup(b.ground.Cgroup); err != nil {
			return nil, "", err
		}
	}
	if err := b.group.Limit(limits); err != nil {
		return nil, "", err // close destroys it
	}
	b.handed = true
	return b.group, b.mechanism, nil
}

// furnish begins to make the session's room. One whose processes have ended meanwhile, as
// a host short of memory may end them, is made anew.
func (b *base) furnish(ctx context.Context, c sandbox.Config) (err error) {
	<-b.done
	if b.room != nil {
		if err := b.room.Furnish(ctx, c); err == nil {
			return nil
		}
		_ = b.room.Close() // the new one's errors are what matters
	}
	if b.room, err = sandbox.Prepare(b.tenant); err != nil {
		return err
	}
	return b.room.Furnish(ctx, c)
}

// start makes a session of the furnished room, and identifies its first process once that
// is in the control group for good.
func (b *base) start(ctx context.Context, c sandbox.Config, group *cgroup.Group) (*sandbox.Session, error) {
	room := b.room
	b.room = nil
	return room.Start(ctx, c, sandbox.Hooks{Placed: func(launch sandbox.Process) error {
		if err := b.finishPlacing(launch, group); err != nil {
			return err
		}
		b.identified = make(chan struct{})
		go func() {
			defer close(b.identified)
			b.id, b.idErr = cgroup.Identify(launch.PID)
		}()
		return nil
	}})
}

// identity is that of the first process of a session that start made.
func (b *base) identity() (cgroup.ProcessIdentity, error) {
	<-b.identified
	return b.id, b.idErr
}

// finishPlacing waits until launch, which is held, is in the control group.
func (b *base) finishPlacing(launch sandbox.Process, group *cgroup.Group) error {
	<-b.placed
	if b.placedPID == launch.PID {
		return nil
	}
	return group.Add(launch.PID)
}

// close ends the processes that were not put to use, and destroys a control group that
// was not handed over. It may be called again.
func (b *base) close(ctx context.Context) error {
	<-b.placed // while launch is there, its pid is no other's
	room := b.room
	b.room = nil
	var err error
	if room != nil {
		err = room.Close()
	}
	if b.group == nil || b.handed {
		return err
	}
	if destroyErr := b.group.Destroy(ctx); err == nil {
		err = destroyErr
	}
	b.group.Close()
	b.group = nil
	return err
}

// free lets go of the user. No process of the session may be left.
func (b *base) free() {
	if b.claim != nil {
		b.claim.release()
	}
}
