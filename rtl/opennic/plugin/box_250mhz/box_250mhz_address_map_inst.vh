// SPDX-License-Identifier: Apache-2.0
// One module has the whole window of the box, so that nothing is to be told apart.
