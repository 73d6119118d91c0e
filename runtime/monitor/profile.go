package monitor

import (
	"cmp"
	"slices"

	"gloved.dev/internal/digest"
)

// A Profile is everything that decides what a session can do, as found on this
// host: the executable's identity and content, the limits, the environment and
// the objects that will be mounted. Its digest is fixed before launch, derived
// again from the open descriptors at launch, and committed by the receipt.
//
// Its encoding is the managed launch profile of the existing verifiers, with
// the confinement segment appended.
type Profile struct {
	ControllerPlanDigest string
	Executable           ExecutableIdentity
	Limits               Limits
	Environment          []string
	RuntimePaths         []string // read-only system and operator paths
	Home                 string
	WorkDir              string
	Argv                 []string
	Mounts               []ProfileMount
	SeccompDigest        string
	ProbeDigest          string
}

// ExecutableIdentity is what the pinned program was when it was opened and
// hashed: fstat's numbers and the SHA-256 of its content.
type ExecutableIdentity struct {
	Dev, Ino         uint64
	Mode             uint32
	Size             uint64
	MtimeNS, CtimeNS int64
	SHA256           string
}

// A ProfileMount is one object mounted into the session besides the system
// runtime. Partition names the quota partition it lives on, if any.
type ProfileMount struct {
	Alias, Target, Partition string
	QuotaBytes               uint64
	Writable, Directory      bool
	// Source identifies the operator's object behind a grant: what is bound,
	// or what was copied.
	Source *SourceIdentity
}

// SourceIdentity identifies a granted host object.
type SourceIdentity struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Mode uint32 `json:"mode"`
}

// Digest returns the profile digest in lowercase hex.
func (p *Profile) Digest() string {
	e := digest.New("glove.managed-launch-profile").U8(1).S(p.ControllerPlanDigest)
	p.Executable.encode(e)
	p.Limits.encode(e)
	e.Strings(slices.Sorted(slices.Values(p.Environment)))
	e.U32(uint32(len(p.RuntimePaths)))
	for _, path := range p.RuntimePaths {
		e.S(path).Bool(false)
	}
	e.Opt(p.Home != "")
	if p.Home != "" {
		e.S(p.Home)
	}
	if p.WorkDir != "" {
		e.S("glove.managed-launch-work-dir").S(p.WorkDir)
	}
	e.Strings(p.Argv)
	mounts := slices.Clone(p.Mounts)
	slices.SortFunc(mounts, func(a, b ProfileMount) int {
		return cmp.Or(cmp.Compare(a.Alias, b.Alias), cmp.Compare(a.Target, b.Target))
	})
	e.U32(uint32(len(mounts)))
	for i := range mounts {
		mounts[i].encode(e)
	}
	return e.S("glove.managed-launch-confinement").S(p.SeccompDigest).S(p.ProbeDigest).Sum()
}

func (x *ExecutableIdentity) encode(e *digest.Encoder) {
	const second = 1_000_000_000
	e.U64(x.Dev).U64(x.Ino).U32(x.Mode).U64(x.Size)
	e.U64(uint64(x.MtimeNS / second)).U32(uint32(x.MtimeNS % second))
	e.U64(uint64(x.CtimeNS / second)).U32(uint32(x.CtimeNS % second))
	e.S(x.SHA256)
}

func (l *Limits) encode(e *digest.Encoder) {
	e.U64(l.CPUTimeMS).U64(l.MemoryBytes).U32(l.PIDs).
		U64(l.WallTimeMS).U64(l.DiskBytes).U64(l.TerminalOutputBytes)
}

func (m *ProfileMount) encode(e *digest.Encoder) {
	e.S(m.Alias).S(m.Target).S(m.Partition).U64(m.QuotaBytes).Bool(m.Writable).Bool(m.Directory)
	e.Opt(m.Source != nil)
	if m.Source != nil {
		e.U64(m.Source.Dev).U64(m.Source.Ino).U32(m.Source.Mode)
	}
	// A library projection, a native adapter's home and an adoption would
	// follow; this build mounts none of them.
	e.Opt(false).Opt(false).Opt(false)
}
