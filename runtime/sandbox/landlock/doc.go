// Package landlock applies a Landlock ruleset to the calling thread: the second,
// independent layer that keeps a session to its own files even where a mount flag
// or a path of the room were wrong.
//
// A Rule grants a set of file rights below one path; what no rule grants is
// refused. The rights handled are those of the ABI level the running kernel has;
// the level is returned so that the receipt can say how much was enforced. TCP is
// refused from level 4 on unless the session has a loopback bridge; abstract
// sockets and signals out of the session's domain from level 6 on.
//
// It is not a policy: the caller decides the rules from the mounts it made.
package landlock
