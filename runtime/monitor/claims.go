package monitor

// ClaimsDir is where a root daemon's sessions claim their host users: one locked
// file per user, named by its number. The file stays; the lock is the claim.
const ClaimsDir = "/run/glove/uids"

// RoleName is a monitor's argv[0], and that of a spare one.
const RoleName = "gloved-monitor"
