// Package host tells whether this machine can run managed sessions, and what to do
// where it cannot.
//
// Its nouns: a [Check] is one prerequisite with its outcome and a line that mends
// it; [Checks] makes all of them by trying the thing itself (a namespace is made, a
// memfd is sealed), because settings alone do not tell what a container, a security
// module or an old kernel adds; [Usable] turns the list into one decision.
//
// The same list serves `glove doctor` and the refusal of a start, so that they can
// not disagree. Trying is kept free of lasting effects, except that the control
// group check does what every start does (see gloved.dev/runtime/cgroup.Detect).
//
// It is not for measuring or enforcing anything during a session, and not a
// substitute for the sandbox's own probe inside a session.
package host
