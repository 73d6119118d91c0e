package monitor

import "gloved.dev/runtime/sandbox"

// A ground is what a monitor is told before it knows its session: enough to make
// the session's processes ahead, which is a good part of starting it. It comes first
// over the inherited socket.
type ground struct {
	ProtocolVersion int      `json:"protocol_version"`
	UIDRange        UIDRange `json:"uid_range"`
	Unprivileged    bool     `json:"unprivileged"`
}

// groundOf is the ground that a session's Spec needs.
func groundOf(s *Spec) ground {
	return ground{ProtocolVersion: ProtocolVersion, UIDRange: s.UIDRange, Unprivileged: s.Unprivileged}
}

// A base is a session's host user, and its processes until they are put to use.
type base struct {
	done   chan struct{} // closed when the members below are set
	claim  *uidClaim     // nil in an unprivileged daemon, whose sessions map to its user
	tenant sandbox.Tenant
	room   *sandbox.Room
	// err says why there is no user for the session.
	err    error
	placed *placement
}

// A placement is launch on its way into the session's control group.
type placement struct {
	pid  int
	done chan struct{}
	err  error // set before done is closed
}

// lay begins to make a base.
func lay(g ground) *base {
	b := &base{done: make(chan struct{}), tenant: sandbox.Tenant{DropGroups: !g.Unprivileged}}
	go func() {
		defer close(b.done)
		if !g.Unprivileged {
			if b.claim, b.err = claimUID(g.UIDRange); b.err != nil {
				return
			}
			b.tenant.HostUID, b.tenant.HostGID = b.claim.uid, b.claim.uid
		}
		b.room, _ = sandbox.Prepare(b.tenant) // begin tries again, and says what is wrong
	}()
	return b
}

// user waits for the session's user.
func (b *base) user() (sandbox.Tenant, error) {
	<-b.done
	return b.tenant, b.err
}

// begin returns the room, for good. One whose processes have ended meanwhile, as a host
// short of memory may end them, is made anew.
func (b *base) begin() (*sandbox.Room, error) {
	<-b.done
	room := b.room
	b.room = nil
	if room != nil && !room.Gone() {
		return room, nil
	}
	if room != nil {
		_ = room.Close() // there is nothing left of it
	}
	return sandbox.Prepare(b.tenant)
}

// place begins to move launch into the session's control group by add: on a v1 host the
// kernel takes milliseconds, in which the rest of the session is prepared.
func (b *base) place(add func(pid int) error) {
	<-b.done
	if b.room == nil {
		return
	}
	p, err := b.room.Launch()
	if err != nil {
		return // Start will say so
	}
	b.placed = &placement{pid: p.PID, done: make(chan struct{})}
	go func() {
		defer close(b.placed.done)
		b.placed.err = add(p.PID)
	}()
}

// finishPlacing waits until launch, which is held, is in the control group.
func (b *base) finishPlacing(launch sandbox.Process, add func(pid int) error) error {
	if b.placed == nil || b.placed.pid != launch.PID {
		return add(launch.PID)
	}
	<-b.placed.done
	return b.placed.err
}

// close ends the processes that were not put to use.
func (b *base) close() error {
	<-b.done
	if b.placed != nil {
		<-b.placed.done
	}
	if b.room == nil {
		return nil
	}
	room := b.room
	b.room = nil
	return room.Close()
}

// free lets go of the user. No process of the session may be left.
func (b *base) free() {
	if b.claim != nil {
		b.claim.release()
	}
}
