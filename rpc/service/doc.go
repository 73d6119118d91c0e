// Package service turns what was constructed (policy, session store, receipt producer)
// into the methods of the control protocol.
//
// Its nouns: a component wraps one domain object and returns its methods; an assembly is
// all components of one gloved, built in order from a Config and closed in reverse. A
// method exists because its component was constructed, for no other reason.
//
// Errors of the domain become errors of the wire here, in one place a component. What
// goes out is a stable code and a sentence that names nothing the peer did not say;
// host paths, local policy lines and causes go to the operator's log. A refused plan
// also carries data.reason, from a closed set.
//
// The package is not for deciding anything: whether a plan is admitted is policy's, and
// whether a transition is legal is journal/session's. The Linux runtime's component is in
// the files named runtime*.go.
package service
