package policy

import "gloved.dev/internal/digest"

// Layout versions of a launch digest: 1 for a pinned executable, 2 for a discovered one.
const (
	launchDigestPinned     = 1
	launchDigestDiscovered = 2
)

// LaunchDigest returns the adapter_command_digest of a launch: SHA-256, lowercase hex, of
//
//	S("glove.runtime-launch-template") u8(version) [version 2: S(discovery) L[S(search path)]]
//	S(executable) L[S(argument)] L[S(environment entry)] L[S(read-only path)]
//
// where version is 1 without discovery and 2 with it. What an adapter adds (managed arguments and
// variables) is not part of it.
func LaunchDigest(l Launch) string {
	return launchMaterial(l).Strings(l.ReadOnlyPaths).Sum()
}

// LegacyLaunchDigest returns the digest as an early encoding had it, without the read-only paths: that
// digest leaves them open to change, so it is never accepted, only recognised, to tell its owner what
// happened.
func LegacyLaunchDigest(l Launch) string { return launchMaterial(l).Sum() }

func launchMaterial(l Launch) *digest.Encoder {
	e := digest.New("glove.runtime-launch-template")
	if l.Discovery == "" {
		e.U8(launchDigestPinned)
	} else {
		e.U8(launchDigestDiscovered).S(l.Discovery).Strings(l.SearchPaths)
	}
	return e.S(l.ExecutablePath).Strings(l.Arguments).Strings(l.Environment)
}
