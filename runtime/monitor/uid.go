package monitor

// DefaultUIDRange is the range of host users for sessions of a root daemon:
// 0x70001000 and up, which neither distributions nor systemd assign.
var DefaultUIDRange = UIDRange{First: 0x70001000, Count: 16384}

// MinUID is the lowest user a range may contain: below it are the system's and
// people's own.
const MinUID = 100000

// Valid reports whether a session of a root daemon may run as any of r's users.
func (r UIDRange) Valid() bool {
	return r.Count > 0 && r.First >= MinUID && uint64(r.First)+uint64(r.Count) <= 1<<31
}
