# SPDX-License-Identifier: Apache-2.0 OR MIT
# Copy to /etc/profile.d/bursar.sh: at a login one line says how much memory is used, from half of the limit on,
# and what was killed since the last one. Else nothing, also when bursard does not answer.
case $- in
*i*)
	if [ -t 1 ] && command -v bursar >/dev/null 2>&1; then
		bursar quota --brief 2>/dev/null || :
	fi
	;;
esac
